"""Message passing: how much of every site's model each site is given, by how alike theirs are.

Source: Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, "Personalized Cross-Silo Federated Learning on
Non-IID Data" (2021), FedAMP, eq. 5 and 6, with A(x) = 1 - exp(-x / sigma).
"""

import math

import numpy as np
from pydantic import Field
from scipy.spatial.distance import cdist

from common.errors import ConfigError
from common.plugins import PieceSettings
from server_app.dissimilarity import FloatArray

__all__ = ["FedAmpSettings", "attention", "check_step"]


class FedAmpSettings(PieceSettings):
    """How far sites of FedAMP move towards those like them, and who is like them."""

    fedamp_alpha: float = Field(
        0.1, gt=0, description="fedamp: alpha_k, step towards the models of like sites"
    )
    fedamp_sigma: float = Field(
        10.0, gt=0, description="fedamp: squared distance of two models at which they are strangers"
    )


def check_step(alpha: float, sigma: float, n: int) -> None:
    """Raise :class:`ConfigError` where n equal models, as all are at first, would be too many.

    Equal models have the most of each other, so that any others of n are fine, too.
    """
    if n > 1 and alpha * (n - 1) > sigma:
        raise ConfigError(_too_far(alpha, n, sigma / (n - 1)))


def attention(models: FloatArray, alpha: float, sigma: float) -> FloatArray:
    """Return what share (n, n) of model j goes into what site i gets; rows sum to 1.

    xi_ij = alpha exp(-||w_i - w_j||^2 / sigma) / sigma, and xi_ii is the rest.

    >>> attention(np.array([[0.0], [0.0], [9.0]]), alpha=0.25, sigma=1.0).round(3).tolist()
    [[0.75, 0.25, 0.0], [0.25, 0.75, 0.0], [0.0, 0.0, 1.0]]

    Args:
        models: (n, d).
        alpha: step, > 0.
        sigma: squared distance, > 0.

    Raises:
        ConfigError: a site would have less than nothing of its own; with the largest alpha.
    """
    points = np.asarray(models, dtype=np.float64)
    shares = np.exp(-cdist(points, points, "sqeuclidean") / sigma) / sigma
    np.fill_diagonal(shares, 0.0)
    most = float(shares.sum(axis=1).max())
    if alpha * most > 1 + 1e-9:
        raise ConfigError(_too_far(alpha, len(points), 1 / most))
    shares *= alpha
    np.fill_diagonal(shares, np.maximum(1 - shares.sum(axis=1), 0.0))
    return np.asarray(shares, dtype=np.float64)


def _too_far(alpha: float, n: int, largest: float) -> str:
    step = 10.0 ** (math.floor(math.log10(largest)) - 3)  # rounded down: it must work
    return (
        f"fedamp-alpha = {alpha:g}: with {n} sites as alike as these one would get more than all "
        f"of its model from others; use at most {math.floor(largest / step) * step:.4g}"
    )
