"""Rows: a data set as read from its files, unscaled, and the numbers it may hold."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError
from common.tables.decimals import Decimal
from common.tables.guesses import Guess
from common.tables.measure import Measure

Array = NDArray[Any]
IntArray = NDArray[np.int64]

# Beyond this a value cannot become float32, and its square still fits in float64.
LARGEST = float(np.finfo(np.float32).max)


def require_finite(x: Array, what: str) -> None:
    """Raise DataError naming the first row of `x` (n, ...) that has NaN, inf or exceeds float32."""
    # min and max carry a NaN along, so the usual case needs no array of flags.
    if x.dtype.kind != "f" or not x.size or (x.min() >= -LARGEST and x.max() <= LARGEST):
        return
    flat = x.reshape(len(x), -1)
    bad = ~(np.abs(flat) <= LARGEST)
    row = int(bad.any(axis=1).argmax())
    value = flat[row][bad[row]][0]
    raise DataError(f"{what}: row {row} holds {value}; drop the row or replace the value")


@dataclass(frozen=True, eq=False)
class Rows:
    """A data set as read: unscaled, in the order of its files.

    x (n, features), (n, channels, samples) for windows of signals, (n, channels, height, width)
    for images, (n, channels, depth, height, width) for volumes; y (n,) in 0..len(class_names)-1;
    owner (n,) in 0..len(owner_names)-1, or None without natural clients; test (n,) marks the rows
    of a split that comes with the data, or None.
    """

    x: Array
    y: IntArray
    class_names: tuple[str, ...]
    owner: IntArray | None = None
    owner_names: tuple[str, ...] = ()
    test: NDArray[np.bool_] | None = None
    group: IntArray | None = None
    """(n,) numbers from 0: rows of one number belong together, as those of one patient."""
    columns: tuple[str, ...] = ()
    """Names of the features, where the file has them."""
    decimal: Decimal = ""
    """The decimal mark that their numbers were read with, where they were texts and it was one."""
    masks: NDArray[np.bool_] | None = None
    """(n, depth, height, width): what is to be found in each volume, where that is the task."""
    quantities: NDArray[np.float64] | None = None
    """(n,): a number that is known of each row, where there is one; y is then its class."""
    measure: Measure | None = None
    """Of the quantities."""

    times: NDArray[np.float64] | None = None
    """(n,): how long each row was followed, 0 or more, where that is the task; y is then 1 where
    the event ended it, and 0 where nobody looked any more."""

    weights: NDArray[np.float64] | None = None
    """(n,): how much each row counts in training, 0 or more; None: all alike."""

    guesses: tuple[Guess, ...] = ()
    """What nobody said of the file, and what was taken for true."""

    def __post_init__(self) -> None:
        if self.x.ndim not in (2, 3, 4, 5):
            raise DataError(
                f"rows of shape {self.x.shape[1:]}: expected (features,), windows or images"
            )
        parts = (
            *(self.x, self.y, self.owner, self.test, self.group, self.masks),
            *(self.quantities, self.times, self.weights),
        )
        lengths = {len(part) for part in parts if part is not None}
        if len(lengths) != 1 or 0 in self.x.shape:
            raise DataError(
                f"{len(self.x)} rows of shape {self.x.shape[1:]} with {len(self.y)} labels: "
                "rows, labels, clients and test marks must be equally many, and at least one"
            )
        require_finite(self.x, "the data")
        if (self.quantities is None) != (self.measure is None):
            raise DataError("quantities and their measure must be given together")
        if self.quantities is not None:
            require_finite(self.quantities, "the label")
        if self.times is not None:
            require_finite(self.times, "the time")
            if len(self.class_names) != 2 or self.times.min() < 0:
                raise DataError("times must be 0 or more, and their label must have two classes")
