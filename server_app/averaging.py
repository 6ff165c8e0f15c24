"""Average of models, by weights."""

from collections.abc import Sequence

import numpy as np

from common.messages import Parameters

__all__ = ["average"]


def average(models: Sequence[Parameters], weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weighted mean of models: sum_i w_i model_i / sum_i w_i, over who took part.

    Adds in float64 and in the order given, so that the result does not depend on threads. Integer
    buffers (batch counters) are averaged and rounded, keeping their type.

    Args:
        models: with equal names, shapes and types.
        weights: (len(models),), positive.
    """
    assert len(models) == len(weights) > 0
    shares = weights / weights.sum(dtype=np.float64)
    return {name: _mean([model[name] for model in models], shares) for name in models[0]}


def _mean(values: Sequence[np.ndarray], shares: np.ndarray) -> np.ndarray:
    total = np.zeros(values[0].shape, dtype=np.float64)
    for value, share in zip(values, shares, strict=True):
        total += share * value
    dtype = values[0].dtype
    # rint makes a number of an array without axes
    return np.asarray(np.rint(total) if dtype.kind in "iu" else total, dtype)
