"""Held-out rows: which rows of a data set are for testing, where nothing says so already."""

import numpy as np
from numpy.typing import NDArray

from common.data.rows import Rows
from common.errors import DataError

__all__ = ["hold_out"]


def hold_out(rows: Rows, fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return test marks (n,): `fraction` of each owner's rows of each class, to less than one row.

    At least one row of every owner and class stays for training.
    """
    owner = np.zeros_like(rows.y) if rows.owner is None else rows.owner
    stratum = owner * len(rows.class_names) + rows.y
    sizes = np.bincount(stratum)
    # Rounding the running total, and not each stratum, keeps the overall number right.
    taken = np.diff(np.floor(np.cumsum(sizes) * fraction + 0.5).astype(np.int64), prepend=0)
    taken = np.minimum(taken, np.maximum(sizes - 1, 0))
    if not taken.any():
        raise DataError(
            f"test-fraction={fraction} of {len(rows.y)} rows in {np.count_nonzero(sizes)} groups "
            "of one class and client leaves no test row; raise it or bring more rows"
        )
    order = rng.permutation(len(stratum))
    order = order[np.argsort(stratum[order], kind="stable")]
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    test = np.zeros(len(order), np.bool_)
    test[order] = rank < np.repeat(taken, sizes)
    return test
