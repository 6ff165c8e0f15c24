"""Accuracy figures: what papers report of a curve of one accuracy in [0, 1] per round.

Source: Pereira et al., "Energy-Efficient Federated Learning for AIoT using Clustering Methods",
section V: an accuracy counts once it was held for a window of 20 rounds.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

__all__ = ["WINDOW", "rounds_to_sustain", "sustained_accuracy"]

FloatArray = NDArray[np.float64]

WINDOW = 20
"""Rounds that an accuracy must be held."""

_ROUND_OFF = 1e-9
"""What summing sites' shares can take off a mean: 9,700 right rows of 10,000 may read as less than
0.97. Another row moves it by more than this below a thousand million rows."""


def sustained_accuracy(accuracies: ArrayLike, window: int = WINDOW) -> float | None:
    """Return the largest accuracy held for ``window`` rounds in a row; None for a shorter curve.

    That is the maximum over all windows of the minimum within the window.

    >>> sustained_accuracy([0.5, 0.9, 0.7, 0.8], window=2)
    0.7
    """
    held = _held(accuracies, window)
    return float(held.max()) if held.size else None


def rounds_to_sustain(accuracies: ArrayLike, target: float, window: int = WINDOW) -> int | None:
    """Return the last round (from 1) of the first window that is never below ``target``.

    None if there is no such window. An accuracy below it by round-off alone is not below it.

    >>> rounds_to_sustain([0.5, 0.9, 0.7, 0.8], target=0.7, window=3)
    4
    """
    reached = np.flatnonzero(_held(accuracies, window) >= target - _ROUND_OFF)
    return int(reached[0]) + window if reached.size else None


def _held(accuracies: ArrayLike, window: int) -> FloatArray:
    """Return the smallest accuracy of every window, (rounds - window + 1,)."""
    curve = np.asarray(accuracies, dtype=np.float64)
    if curve.size < window:
        return np.empty(0)
    return np.asarray(sliding_window_view(curve, window).min(axis=1))
