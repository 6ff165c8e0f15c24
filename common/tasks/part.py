"""Part: the rows of a data set that are trained on, or those that are held out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError

__all__ = ["Array", "IntArray", "Part", "require_finite"]

Array = NDArray[Any]
IntArray = NDArray[np.int64]

# Beyond this a value cannot become float32, and its square still fits in float64.
LARGEST = float(np.finfo(np.float32).max)


def require_finite(x: Array, what: str, *, gaps: bool = False) -> None:
    """Raise DataError naming the first row of `x` (n, ...) that has NaN, inf or exceeds float32.

    With ``gaps`` NaN is allowed: it says that a value is missing.
    """
    # min and max carry a NaN along, so the usual case needs no array of flags.
    if x.dtype.kind != "f" or not x.size or (x.min() >= -LARGEST and x.max() <= LARGEST):
        return
    flat = x.reshape(len(x), -1)
    bad = ~(np.abs(flat) <= LARGEST)
    if gaps:
        bad &= ~np.isnan(flat)
        if not bad.any():
            return
    row = int(bad.any(axis=1).argmax())
    value = flat[row][bad[row]][0]
    raise DataError(f"{what}: row {row} holds {value}; drop the row or replace the value")


@dataclass(frozen=True, eq=False)
class Part:
    """Rows, what is known of each, and whose they are."""

    x: Array
    """(n, *shape of a row)."""
    y: Array
    """(n, ...): what is to be learnt of each row, as its task has it: classes (n,) int64,
    quantities (n,) float64, times and events (n, 2) float64, masks (n, depth, height, width)
    bool."""
    owner: IntArray | None = None
    """(n,) number of each row's natural client; None: there are none."""
    group: IntArray | None = None
    """(n,): rows of one number belong together, as those of one patient; None: none do."""
    weight: NDArray[np.float64] | None = None
    """(n,): how much each row counts in training, 0 or more; None: all alike."""

    def __post_init__(self) -> None:
        """Refuse arrays of different lengths, and weights that weigh nothing."""
        for name in ("y", "owner", "group", "weight"):
            value = getattr(self, name)
            if value is not None and len(value) != len(self.x):
                raise DataError(f"{name} of {len(value)} rows beside {len(self.x)} rows")
        for name in ("owner", "group"):
            value = getattr(self, name)
            if value is not None and (value.ndim != 1 or value.dtype != np.int64):
                raise DataError(f"{name} is {value.dtype} {value.shape}; expected int64 (n,)")
        if self.weight is not None:
            _check_weights(self.weight)

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.x)


def _check_weights(weight: Array) -> None:
    if weight.ndim != 1 or weight.dtype != np.float64:
        raise DataError(f"weight is {weight.dtype} {weight.shape}; expected float64 (n,)")
    require_finite(weight, "weight")
    if not weight.size or weight.min() < 0 or not weight.any():
        raise DataError(
            f"weights are from {weight.min(initial=0):g} to {weight.max(initial=0):g}; expected 0 "
            "or more, and one above 0"
        )
