"""Robust averages: what a minority of arbitrary updates cannot carry away.

Updates are (n, d): a row for each site, what its training added to the model. All sums are in
float64, distances are of differences, and ties go to the earlier site. No rule but the geometric
median uses the sites' rows as weights: their number is a claim of the site.
"""

import numpy as np

__all__ = ["clipped", "geometric_median", "krum_scores", "median", "multi_krum", "trimmed_mean"]

_PASSES = 100
_STILL = 1e-10  # a change of the objective, relative to it, below which it has converged


def median(updates: np.ndarray) -> np.ndarray:
    """Return the median of every coordinate, (d,): Yin et al. 2018, Definition 1.

    >>> median(np.array([[0.0, 5.0], [1.0, 6.0], [1e9, 7.0]]))
    array([1., 6.])
    """
    return np.median(np.asarray(updates, np.float64), axis=0)


def trimmed_mean(updates: np.ndarray, share: float) -> np.ndarray:
    """Return every coordinate's mean without its k smallest and k largest, (d,).

    k = floor(share n): Yin et al. 2018, Definition 2.

    Args:
        updates: (n, d).
        share: that is cut off at each end, in [0, 1/2).

    >>> trimmed_mean(np.array([[0.0], [1.0], [3.0], [1e9]]), 0.25)
    array([2.])
    """
    assert 0 <= share < 0.5
    cut = int(np.floor(share * len(updates) + 1e-9))  # 0.29 of 100 is 29, not 28.999...
    ordered = np.sort(np.asarray(updates, np.float64), axis=0)
    return np.asarray(ordered[cut : len(ordered) - cut].mean(axis=0))


def krum_scores(updates: np.ndarray, f: int) -> np.ndarray:
    """Return each update's sum of squared distances to its n - f - 2 nearest others, (n,).

    Blanchard et al. 2017, section 4.

    Args:
        updates: (n, d), n >= 2 f + 3.
        f: updates that may be arbitrary.
    """
    n = len(updates)
    assert n >= 2 * f + 3
    exact = np.asarray(updates, np.float64)
    scores = np.empty(n)
    for index, update in enumerate(exact):
        squares = ((np.delete(exact, index, axis=0) - update) ** 2).sum(axis=1)
        scores[index] = np.sort(squares)[: n - f - 2].sum()
    return scores


def multi_krum(updates: np.ndarray, f: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the m updates with the smallest scores, (d,), and who they are, ascending.

    m = 1 is Krum: Blanchard et al. 2017, sections 4 and 5.
    """
    chosen = np.sort(np.argsort(krum_scores(updates, f), kind="stable")[:m])
    return np.asarray(np.asarray(updates, np.float64)[chosen].mean(axis=0)), chosen


def geometric_median(updates: np.ndarray, rows: np.ndarray, *, least: float = 1e-6) -> np.ndarray:
    """Return the point of smallest weighted sum of distances to the updates, (d,).

    The smoothed Weiszfeld algorithm of Pillutla et al. 2022, Algorithm 2, from the mean on.

    Args:
        updates: (n, d).
        rows: (n,) of each site, positive.
        least: distance below which another update's pull grows no further.
    """
    exact, shares = np.asarray(updates, np.float64), rows / np.sum(rows, dtype=np.float64)
    point = shares @ exact
    lengths = _distances(exact, point)
    for _ in range(_PASSES):
        pulls = shares / np.maximum(lengths, least)
        moved = pulls @ exact / pulls.sum()
        closer = _distances(exact, moved)
        gain = shares @ lengths - shares @ closer
        if gain <= _STILL * (shares @ lengths):
            break
        point, lengths = moved, closer
    # It creeps where an update is the median; that update then lies nearest.
    nearest = exact[np.argmin(lengths)]
    at_nearest = shares @ _distances(exact, nearest)
    return np.asarray(nearest if at_nearest < shares @ lengths else point)


def clipped(updates: np.ndarray, length: float) -> np.ndarray:
    """Return updates shortened to a length where they are longer, (n, d).

    >>> clipped(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    array([[0.6, 0.8],
           [0.3, 0.4]])
    """
    exact = np.asarray(updates, np.float64)
    norms = np.linalg.norm(exact, axis=1, keepdims=True)
    factors = np.divide(length, norms, out=np.ones_like(norms), where=norms > length)
    return np.asarray(exact * factors)


def _distances(updates: np.ndarray, point: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(updates - point, axis=1))
