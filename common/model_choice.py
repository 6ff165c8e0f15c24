"""Choice of a model by its losses: which of several fits a site."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import ClusteringError

__all__ = ["choices"]


def choices(losses: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Return each site's model (n,): the one of its smallest loss, ties to the lower.

    >>> choices(np.array([[0.3, 0.1], [0.2, 0.2], [np.nan, 9.0]])).tolist()
    [1, 0, 1]

    Args:
        losses: (n, k) nats, of every model at every site; NaN and infinity are never chosen.

    Raises:
        ClusteringError: a site for which no model has a finite loss.
    """
    usable = np.where(np.isfinite(losses), losses, np.inf)
    lost = ~np.isfinite(usable).any(axis=1)
    if lost.any():
        raise ClusteringError(f"no model has a finite loss at site {int(np.argmax(lost))}")
    return np.asarray(usable.argmin(axis=1), dtype=np.int64)
