"""Inputs: what kind of thing a row is, by a tag, and the shape of one."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from common.errors import DataError

__all__ = ["FEATURES", "IMAGES", "KINDS", "TOKENS", "VOLUMES", "WINDOWS", "Inputs"]

FEATURES: Final = "features"
WINDOWS: Final = "windows"
IMAGES: Final = "images"
VOLUMES: Final = "volumes"
TOKENS: Final = "tokens"

KINDS: Final = {
    FEATURES: "(features,)",
    WINDOWS: "(channels, samples)",
    IMAGES: "(channels, height, width)",
    VOLUMES: "(channels, depth, height, width)",
    TOKENS: "(length,)",
}
"""Every kind, and the axes of one row of it."""


@dataclass(frozen=True)
class Inputs:
    """What goes into a network: rows of one kind and shape.

    Token ids are whole numbers of at least 0 and are never scaled; all else are float32, to be
    standardised.
    """

    kind: str
    """One of :data:`KINDS`."""
    shape: tuple[int, ...]
    """Of one row, every side 1 or more."""

    def __post_init__(self) -> None:
        """Refuse a kind that there is none of, and a shape of another kind."""
        if self.kind not in KINDS:
            raise DataError(f"rows of kind {self.kind!r}: must be one of {', '.join(KINDS)}")
        axes = KINDS[self.kind]
        if len(self.shape) != len(axes.strip("(,)").split(",")) or min(self.shape) < 1:
            raise DataError(f"{self.kind} of shape {self.shape}: a row must be {axes}")

    @property
    def dtype(self) -> type[np.generic]:
        """Of the rows as a network takes them."""
        return np.int64 if self.kind == TOKENS else np.float32

    def __str__(self) -> str:
        """Return the kind and the shape.

        >>> str(Inputs(IMAGES, (3, 32, 32)))
        'images of shape (3, 32, 32)'
        """
        return f"{self.kind} of shape {self.shape}"
