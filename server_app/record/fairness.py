"""Fairness: how evenly a federation serves its sites."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["spread", "worst_tenth"]


def spread(values: NDArray[np.float64]) -> float:
    """Return the standard deviation over sites (n,), n >= 1, every site counting once.

    >>> spread(np.array([0.25, 0.75]))
    0.25
    """
    return float(np.std(values))


def worst_tenth(values: NDArray[np.float64]) -> float:
    """Return the mean of the lowest tenth, at least one, of finite values (n,), n >= 1.

    >>> worst_tenth(np.array([0.75, 0.25, *[1.0] * 18]))
    0.5
    """
    return float(np.sort(values)[: -(-len(values) // 10)].mean())
