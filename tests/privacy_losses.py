"""Privacy losses by brute force: an oracle of the accounting that shares no code with it.

Every loss is moved to a point of a grid, once down and once up. Losses of independent events add,
so their probabilities convolve; what is true lies between the two.
"""

import functools
import math

import numpy as np
from scipy.optimize import brentq
from scipy.signal import fftconvolve
from scipy.stats import norm

from common.privacy.accounting import ContinuousGaussian, DiscreteGaussian

STEP = 1e-4


def bounds(events, delta):
    """Return the least and the most epsilon that events can amount to at a delta."""
    return tuple(_epsilon(tuple(events), delta, rounding) for rounding in (np.floor, np.ceil))


def _epsilon(events, delta, rounding):
    parts = [_of(event, rounding) for event in events]
    masses = functools.reduce(fftconvolve, (masses for _, masses in parts))
    losses = (sum(first for first, _ in parts) + np.arange(len(masses))) * STEP
    losses, masses = losses[losses > 0], np.maximum(masses, 0)[losses > 0]

    def excess(epsilon):
        above = losses > epsilon
        return masses[above] @ -np.expm1(epsilon - losses[above]) - delta

    return brentq(excess, 0.0, losses[-1]) if len(losses) and excess(0.0) > 0 else 0.0


@functools.lru_cache
def _of(event, rounding):
    """Return the first point of the grid that weighs anything, and the weights from there on."""
    if isinstance(event, ContinuousGaussian):
        middle, reach = event.mu**2 / 2, 8.3 * event.mu
        edges = np.arange(math.floor((middle - reach) / STEP), math.ceil((middle + reach) / STEP))
        masses = np.diff(norm(middle, event.mu).cdf(edges * STEP))
        return int(edges[0]) + (rounding is np.ceil), masses
    if isinstance(event, DiscreteGaussian):
        noise = np.arange(-math.ceil(12 * event.sigma), math.ceil(12 * event.sigma) + 1)
        weights = np.exp(-(noise**2) / (2 * event.sigma**2))
        # log p(y) / p(y - 1) of every number by itself, all pairs of numbers together
        losses, masses = np.zeros(1), np.ones(1)
        for _ in range(event.coordinates):
            one = (1 - 2 * noise) / (2 * event.sigma**2)
            losses = np.add.outer(losses, one).ravel()
            masses = np.multiply.outer(masses, weights / weights.sum()).ravel()
    else:
        truth = math.exp(event.epsilon) / (math.exp(event.epsilon) + event.categories - 1)
        other = (1 - truth) / (event.categories - 1)
        losses = np.array([event.epsilon, 0.0, -event.epsilon])
        masses = np.array([truth, (event.categories - 2) * other, other])
    # what lies on a point but for the last digits stays there
    points = rounding(np.round(losses / STEP, 6)).astype(np.int64)
    grid = np.zeros(points.max() - points.min() + 1)
    np.add.at(grid, points - points.min(), masses)
    return int(points.min()), grid


def sampled_bounds(noise, rate, steps, delta, points=2**20, reach=32.0):
    """Return the least and the most epsilon of steps on samples with noise at a delta.

    Of one step the losses of both neighbours, one unit more and one less, are cut into a grid by
    the normal distribution's own function; a power of its transform is the sum of all steps'.
    """
    step = 2 * reach / points
    return tuple(
        max(_of_steps(noise, rate, steps, delta, more, step, points, up) for more in (True, False))
        for up in (0, 1)
    )


def _of_steps(noise, rate, steps, delta, more, step, points, up):
    # loss of x under (1 - rate) N(0, noise²) + rate N(1, noise²) against N(0, noise²) at the ends
    ends = (np.arange(points + 1) - points // 2) * step
    inside = np.expm1(ends if more else -ends) + rate  # rate exp((2x - 1) / (2 noise²))
    with np.errstate(divide="ignore", invalid="ignore"):
        x = noise**2 * np.log(np.where(inside > 0, inside, 0) / rate) + 0.5
    below = norm.cdf(x, 0, noise)
    if more:
        below = (1 - rate) * below + rate * norm.cdf(x, 1, noise)
    masses = np.abs(np.diff(below))
    if up:
        masses = np.roll(masses, 1)
    spectrum = np.fft.rfft(np.fft.ifftshift(masses))
    total = np.fft.fftshift(np.fft.irfft(spectrum**steps, points))
    losses = ends[:-1]
    positive = losses > 0
    losses, total = losses[positive], np.maximum(total[positive], 0)

    def excess(epsilon):
        above = losses > epsilon
        return total[above] @ -np.expm1(epsilon - losses[above]) - delta

    return brentq(excess, 0.0, losses[-1]) if excess(0.0) > 0 else 0.0
