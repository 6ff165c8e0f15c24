"""Standardised rows: mean 0 and deviation 1 of every feature or channel, in two passes."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from common.data.rows import Array

# Values standardised at once: float64 copies of so many stay in a core's cache.
CHUNK_VALUES = 2**16


def mean_and_scale(
    x: Array, rows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and 1/std of some rows per feature or channel, shaped to broadcast.

    Of what is known: NaN is missing. 1/std is 0 where a feature is constant. Pixels need no scaling
    to [0, 1] first: (x/255 - mean/255) / (std/255) = (x - mean) / std.
    """
    axes = (0, *range(2, x.ndim))
    # Moments about a value that occurs: those about 0 would lose the digits of a small deviation.
    near = np.asarray(x[rows[:1]].mean(axis=axes, keepdims=True, dtype=np.float64))
    near[np.isnan(near)] = 0
    sums, squares, counts = np.zeros_like(near), np.zeros_like(near), np.zeros_like(near)
    lowest, highest = np.full_like(near, np.inf), np.full_like(near, -np.inf)
    for chunk in chunks(x, len(rows)):
        values = np.ascontiguousarray(x[rows[chunk]])  # the same sums however x lies in memory
        missing = np.isnan(values)
        low = high = values
        if missing.any():
            low, high = (np.where(missing, end, values) for end in (np.inf, -np.inf))
        np.minimum(lowest, low.min(axis=axes, keepdims=True), out=lowest)
        np.maximum(highest, high.max(axis=axes, keepdims=True), out=highest)
        counts += (~missing).sum(axis=axes, keepdims=True)
        part = values.astype(np.float64)
        part -= near
        part[missing] = 0
        sums += part.sum(axis=axes, keepdims=True)
        part *= part
        squares += part.sum(axis=axes, keepdims=True)
    count = np.maximum(counts, 1)
    variance = squares / count - (sums / count) ** 2
    # Rounding can leave a constant feature a tiny deviation: compare its extremes.
    varies = (lowest < highest) & (variance > 0)
    scale = np.sqrt(np.divide(1.0, variance, out=np.zeros_like(variance), where=varies))
    return near + sums / count, scale


def scaled(
    x: Array, rows: NDArray[np.int64], mean: NDArray[np.float64], scale: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Return some rows, standardised."""
    out = np.empty((len(rows), *x.shape[1:]), np.float32)
    for chunk in chunks(x, len(rows)):
        part = x[rows[chunk]].astype(np.float64)
        part -= mean
        part *= scale
        out[chunk] = part
    return out


def chunks(x: Array, num_rows: int | None = None) -> Iterator[slice]:
    """Yield slices over all rows of x, or over so many of its kind, few enough for the cache."""
    step = max(1, CHUNK_VALUES // math.prod(x.shape[1:]))
    for start in range(0, len(x) if num_rows is None else num_rows, step):
        yield slice(start, start + step)
