"""Statistics of a class's rows, mean and second moment, with zero-concentrated privacy.

The rows lie in the unit ball of a public projection (:mod:`common.projection`), so one row can move
both statistics together by a known length. They are rounded to a fine lattice and get discrete
Gaussian noise: integers have no last digits that give the sum away. Source: Canonne, Kamath,
Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, theorem 14.
"""

import math
import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError
from common.privacy import noise
from common.privacy.accounting import ContinuousGaussian
from common.privacy.closed_form import mu_of_rho, zcdp_sigma
from common.privacy.noise import Entropy
from common.projection import (
    PROJECTED_DIMENSIONS,
    projected_into_ball,
    public_projection,
    unit_rows,
)

__all__ = ["Moments", "NoisyMoments", "ball_rows", "class_event", "noise_sigma"]
__all__ += ["release_moments", "sensitivity"]

FloatArray = NDArray[np.float64]

_FARTHEST = math.sqrt(4.5)
"""Largest distance of (x, xx') and (y, yy') in the unit ball: at unit rows with x'y = -1/2."""
_LATTICE = 1024  # points of the lattice per sensitivity, over all coordinates together


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean (r,) and symmetric second moment (r, r) of some rows."""

    mean: FloatArray
    second: FloatArray

    @classmethod
    def of(cls, rows: FloatArray) -> "Moments":
        """Return those of rows (n, r)."""
        return cls(rows.mean(axis=0), rows.T @ rows / len(rows))

    def flat(self) -> FloatArray:
        """Return the point (r + r(r+1)/2,) whose length counts every entry of the matrix.

        An entry beside the diagonal stands for two: times sqrt(2) it counts as both, and so gets
        half the variance of one on the diagonal.
        """
        upper = np.triu_indices(len(self.mean))
        weight = np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
        return np.concatenate([self.mean, self.second[upper] * weight])

    @classmethod
    def from_flat(cls, point: FloatArray) -> "Moments":
        """Return the moments of a point; :class:`DataError` for a length that no r gives."""
        r = (math.isqrt(9 + 8 * len(point)) - 3) // 2
        if r < 1 or r + r * (r + 1) // 2 != len(point):
            raise DataError(f"{len(point)} numbers are no mean with a second moment")
        upper = np.triu_indices(r)
        weight = np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
        second = np.zeros((r, r))
        second[upper] = point[r:] / weight
        return cls(point[:r], second + np.triu(second, 1).T)


@dataclass(frozen=True, eq=False)
class NoisyMoments:
    """Moments with noise, and how much: all that anybody else learns of a class's rows."""

    moments: Moments
    rows: int
    """Public."""
    sigma: float
    """Standard deviation of the noise on the mean and on the second moment's diagonal."""

    @cached_property
    def covariance(self) -> FloatArray:
        """The covariance (r, r) that they make plausible, not always positive definite."""
        mean, second = self.moments.mean, self.moments.second
        # E[noisy mean · its transpose] is sigma² too large on the diagonal.
        centred = second - np.outer(mean, mean) + self.sigma**2 * np.eye(len(mean))
        return centred * self.rows / (self.rows - 1)


def ball_rows(rows: FloatArray, projection_seed: int = 0) -> FloatArray:
    """Return representations (n, d) as rows (n, min(5, d)) of norm at most 1, in the public frame.

    As the OT cost's variant ``paper`` has them: directions, projected, scaled, clipped.
    """
    frame = public_projection(rows.shape[1], PROJECTED_DIMENSIONS, projection_seed)
    return projected_into_ball(unit_rows(rows), frame)


def sensitivity(rows: int) -> float:
    """Return how far one replaced row can move the moments of so many rows."""
    return _FARTHEST / rows


def _step(rows: int, size: int) -> float:
    """Return the lattice's spacing: rounding two points apart adds at most one part in 1024."""
    return sensitivity(rows) / (_LATTICE * math.sqrt(size))


def noise_sigma(rho: float, rows: int) -> float:
    """Return the standard deviation of the noise for rho-zCDP, the rounding included."""
    return zcdp_sigma(rho, sensitivity(rows) * (1 + 1 / _LATTICE))


def class_event(rho: float) -> ContinuousGaussian:
    """Return what releasing every class's moments costs.

    A row is in one class only, so for replacing a row within its class all classes cost as one.
    """
    return ContinuousGaussian(mu_of_rho(rho))


def release_moments(rows: FloatArray, rho: float, entropy: Entropy = os.urandom) -> NoisyMoments:
    """Return the moments of rows (n, r) in the unit ball, rho-zCDP for replacing one of them.

    Raises:
        DataError: fewer than two rows, or one outside the ball.
    """
    if len(rows) < 2:
        raise DataError(f"{len(rows)} rows have no covariance: leave that class out")
    if not np.linalg.norm(rows, axis=1).max() <= 1 + 1e-12:  # NaN is in no ball
        raise DataError("a row lies outside the unit ball: project it with ball_rows")
    point = Moments.of(rows).flat()
    step, sigma = _step(len(rows), len(point)), noise_sigma(rho, len(rows))
    lattice = np.rint(point / step).astype(np.int64)
    noisy = lattice + noise.discrete_gaussian(sigma / step, len(point), entropy)
    released: FloatArray = noisy.astype(np.float64) * step
    return NoisyMoments(Moments.from_flat(released), len(rows), sigma)
