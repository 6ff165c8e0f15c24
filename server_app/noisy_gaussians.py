"""How far two classes are apart, when only noisy moments of their rows are known."""

import numpy as np

from common.private_statistics import NoisyMoments
from server_app.gaussians import Gaussian, hellinger_distance

__all__ = ["noisy_label_cost"]

_RIDGE_SHARE = 0.01  # of the mean variance of unit rows, as in the clear
_RIDGE_PER_SIGMA = 10.0
"""Below about 5 equal classes look different by their noise, above 20 different ones look alike
(measured: docs/decisions/0015-private-label-cost.md)."""


def noisy_label_cost(first: NoisyMoments, second: NoisyMoments) -> float:
    """Return the Hellinger distance in [0, 1] of the Gaussians that the moments make plausible.

    The same ridge, ten times the larger noise, goes on both covariances, so that noise alone is
    small beside it. That also hides what is smaller than the noise: costs of classes with few rows
    shrink, and are not to be held against those computed in the clear.
    """
    dimensions = len(first.moments.mean)
    ridge = _RIDGE_SHARE / dimensions + _RIDGE_PER_SIGMA * max(first.sigma, second.sigma)
    return hellinger_distance(_plausible(first, ridge), _plausible(second, ridge))


def _plausible(noisy: NoisyMoments, ridge: float) -> Gaussian:
    """Return the Gaussian with the covariance's negative eigenvalues, which noise made, raised."""
    values, vectors = np.linalg.eigh(noisy.covariance)
    raised = vectors * (np.maximum(values, 0.0) + ridge) @ vectors.T
    return Gaussian(noisy.moments.mean, raised)
