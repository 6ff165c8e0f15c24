"""Template of a model: what the arrays must be that come in the place of one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.errors import MessageError
from common.messages.arrays import Parameters

__all__ = ["Template", "check_arrays", "check_finite"]

_SLACK_BYTES = 65_536  # headers, names and scalars beside the arrays


@dataclass(frozen=True)
class Template:
    """Names, shapes and types that a model must have."""

    arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    max_bytes: int

    @classmethod
    def of(cls, parameters: Parameters) -> "Template":
        """Return the template that a model sets."""
        arrays = {name: (value.shape, value.dtype) for name, value in parameters.items()}
        size = sum(value.nbytes + len(name) + 256 for name, value in parameters.items())
        return cls(arrays, size + _SLACK_BYTES)


def check_arrays(parameters: Parameters, template: Template, *, finite: bool = True) -> None:
    """Raise :class:`MessageError` for names, shapes or types that differ, and for NaN and inf.

    Args:
        parameters: that came.
        template: of what is due.
        finite: whether to look at the numbers, too: most of the work.
    """
    for kind, names in (
        ("lacks", template.arrays.keys() - parameters.keys()),
        ("has an unknown", parameters.keys() - template.arrays.keys()),
    ):
        if names:
            raise MessageError(f"{kind} array {min(names)!r}")
    for name, (shape, dtype) in template.arrays.items():
        value = parameters[name]
        if value.shape != shape:
            raise MessageError(f"array {name!r} has shape {value.shape}, expected {shape}")
        if value.dtype != dtype:
            raise MessageError(f"array {name!r} is {value.dtype}, expected {dtype}")
    if finite:
        check_finite(parameters)


def check_finite(parameters: Parameters) -> None:
    """Raise :class:`MessageError` for NaN and inf."""
    with np.errstate(over="ignore"):  # once: for small arrays it takes longer than looking at them
        for name, value in parameters.items():
            if not _is_finite(value):
                kind = "NaN" if np.isnan(value).any() else "an infinite value"
                raise MessageError(f"array {name!r} holds {kind}")


def _is_finite(value: np.ndarray) -> bool:
    if value.dtype.kind != "f":
        return True
    flat = value.reshape(-1)
    # One pass, and no temporary array: a sum of squares is finite only if every entry is.
    return math.isfinite(flat.dot(flat)) or bool(np.isfinite(flat).all())
