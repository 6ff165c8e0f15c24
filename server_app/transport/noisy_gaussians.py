"""Noisy Gaussians: how far two classes are apart, when only noisy moments are known.

Noise the size of an eigenvalue looks like another distribution, and a ridge that covers the noise
covers real differences with it. So the distance is given by two bounds, one on each side of the
mistake; they close as rows or rho grow. Measured: docs/decisions/0015-private-label-cost.md.
"""

import numpy as np

from common.privacy.statistics import NoisyMoments
from server_app.transport.gaussians import Gaussian, hellinger_distance

__all__ = ["noisy_label_bounds", "noisy_label_cost"]

_RIDGE_SHARE = 0.01  # of the mean variance of unit rows, as in the clear
_COVERED = 10.0
"""Ridge per sigma through which hardly any noise shows: equal classes cost as in the clear."""
_BARE = 0.3
"""Ridge per sigma that only keeps covariances positive: different classes cost as in the clear."""


def noisy_label_bounds(first: NoisyMoments, second: NoisyMoments) -> tuple[float, float]:
    """Return two Hellinger distances in [0, 1], the first at most the second.

    Of the Gaussians that the moments make plausible: with a ridge that covers the noise, which
    cannot make equal classes look very different, and with one that does not, which cannot make
    different ones look alike. Without noise both are the distance in the clear.
    """
    low, high = (_distance(first, second, ridge) for ridge in (_COVERED, _BARE))
    return min(low, high), max(low, high)


def noisy_label_cost(first: NoisyMoments, second: NoisyMoments) -> float:
    """Return the middle of :func:`noisy_label_bounds`."""
    low, high = noisy_label_bounds(first, second)
    return (low + high) / 2


def _distance(first: NoisyMoments, second: NoisyMoments, per_sigma: float) -> float:
    dimensions = len(first.moments.mean)
    # The same on both sides, or the ridges themselves would differ.
    ridge = _RIDGE_SHARE / dimensions + per_sigma * max(first.sigma, second.sigma)
    return hellinger_distance(_plausible(first, ridge), _plausible(second, ridge))


def _plausible(noisy: NoisyMoments, ridge: float) -> Gaussian:
    """Return the Gaussian with the covariance's negative eigenvalues, which noise made, raised."""
    values, vectors = np.linalg.eigh(noisy.covariance)
    raised = vectors * (np.maximum(values, 0.0) + ridge) @ vectors.T
    return Gaussian(noisy.moments.mean, raised)
