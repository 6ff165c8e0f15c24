"""Representations of one client's rows, which a probe leaves, and their classes.

A representation h is the input of the model's last linear layer; z = h/‖h‖ is its direction.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError
from common.projection import unit_rows
from common.seeds import generator
from server_app.dissimilarity import FloatArray

__all__ = ["Representations", "check_same_width", "subsampled", "unit_rows"]


@dataclass(frozen=True, eq=False)
class Representations:
    """One client's representations (n, d) as float64 and the class (n,) of each; n may be 0.

    >>> Representations(np.eye(3), np.array([4, 4, 7])).class_counts
    {4: 2, 7: 1}

    Raises:
        DataError: shapes or types that do not fit, no columns, or a value that is not finite; the
            message names the first such row.
    """

    rows: NDArray[np.floating[Any]]
    labels: NDArray[np.integer[Any]]

    def __post_init__(self) -> None:
        rows, labels = np.asarray(self.rows, dtype=np.float64), np.asarray(self.labels)
        if rows.ndim != 2 or rows.shape[1] == 0:
            raise DataError(f"representations have shape {rows.shape}: give one row each, (n, d)")
        if labels.shape != rows.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
            raise DataError(
                f"labels have shape {labels.shape} and type {labels.dtype} beside representations "
                f"of shape {rows.shape}: give one integer per row"
            )
        bad = ~np.isfinite(rows).all(axis=1)
        if bad.any():
            raise DataError(
                f"representation {int(np.argmax(bad))} holds a value that is not finite: "
                "leave that client out, or train it with a smaller learning rate"
            )
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "labels", labels)

    @property
    def width(self) -> int:
        """Length d of a representation, at least 1."""
        return int(self.rows.shape[1])

    @cached_property
    def class_counts(self) -> dict[int, int]:
        """Number of rows of every class that occurs, in ascending order of the classes."""
        classes, counts = np.unique(self.labels, return_counts=True)
        return dict(zip(classes.tolist(), counts.tolist(), strict=True))

    def of_class(self, label: int) -> FloatArray:
        """Return the representations of one class, in their order."""
        chosen: FloatArray = self.rows[self.labels == label]
        return chosen


def check_same_width(first: int, second: int) -> None:
    """Refuse two clients whose representations differ in length."""
    if first != second:
        raise DataError(
            f"representations of {first} and {second} columns cannot be compared: "
            "take both from one model"
        )


def subsampled(rows: FloatArray, max_rows: int, seed: int, label: int) -> FloatArray:
    """Return at most ``max_rows`` rows, in their order, the same ones for the same seed and class.

    Two clients with equally many rows keep the same places, so equal clients stay equal.
    """
    if len(rows) <= max_rows:
        return rows
    rng = generator(seed, "ot-subsample", label)
    return rows[np.sort(rng.choice(len(rows), max_rows, replace=False))]
