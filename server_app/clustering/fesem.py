"""FeSEM: centres in the space of models, and the one that each site's model is nearest to.

Source: Xie et al., "Multi-Center Federated Learning" (2021), FeSEM.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from common.errors import ClusteringError
from server_app.dissimilarity import FloatArray

__all__ = ["centred", "first_centres", "nearest_centres"]

IntArray = NDArray[np.int64]


def first_centres(models: FloatArray, k: int, rng: np.random.Generator) -> IntArray:
    """Return which of models (n, d) are the first k centres, drawn as k-means++ does.

    Raises:
        ClusteringError: fewer models than centres.
    """
    from sklearn.cluster import kmeans_plusplus  # takes half a second to load

    if len(models) < k:
        raise ClusteringError(
            f"num-clusters={k}: round 1 has {len(models)} models, and each centre begins as one; "
            "use fewer clusters"
        )
    points = np.asarray(models, dtype=np.float64)
    _, chosen = kmeans_plusplus(points, k, random_state=int(rng.integers(2**31)))
    return np.asarray(chosen, dtype=np.int64)


def nearest_centres(models: FloatArray, centres: FloatArray) -> IntArray:
    """Return the centre (n,) of each of models (n, d): the nearest of (k, d) in L2, ties to lower.

    >>> nearest_centres(np.array([[0.0], [3.0], [2.0]]), np.array([[0.0], [4.0]])).tolist()
    [0, 1, 0]
    """
    return np.asarray(cdist(models, centres, "sqeuclidean").argmin(axis=1), dtype=np.int64)


def centred(models: FloatArray, centres: FloatArray, numbers: IntArray) -> FloatArray:
    """Return the centres (k, d) as equal means of their models; one without any stays.

    With :func:`nearest_centres` before it this is a step of Lloyd's: the sum of the squared
    distances of fixed models never rises. In a run, the aggregation rule makes the means.
    """
    after: FloatArray = np.array(centres, dtype=np.float64)
    for number in np.unique(numbers):
        after[number] = models[numbers == number].mean(axis=0)
    return after
