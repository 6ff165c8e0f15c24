"""Divergence: how far the sites' models lie from the common one."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

__all__ = ["weight_divergences"]

Arrays = Mapping[str, np.ndarray]


def weight_divergences(updates: Sequence[Arrays], model: Arrays) -> list[float] | None:
    """Return ||w_i - w|| / ||w|| >= 0 of every update w_i of a model w; None if w is zero.

    Elhussein & Gürsoy, eq. 1. Over all arrays of floating type together; whole numbers (counters of
    batch norm) are no weights.

    >>> model = {"w": np.array([2.0, 0.0])}
    >>> weight_divergences([{"w": np.array([1.0, 0.0])}, {"w": np.array([-1.0, 0.0])}], model)
    [0.5, 1.5]
    """
    names = [name for name, value in model.items() if value.dtype.kind == "f"]
    scale = _norm([model[name] for name in names])
    if scale == 0:
        return None
    return [_norm([update[name] - model[name] for name in names]) / scale for update in updates]


def _norm(arrays: Sequence[np.ndarray]) -> float:
    return math.sqrt(sum(float(np.vdot(array, array)) for array in arrays))
