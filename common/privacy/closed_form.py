"""Closed forms of differential privacy: how much noise a promise needs, what noise promises.

Units, adjacency and composition over a site's life are in :mod:`common.privacy.accounting`; random
draws in :mod:`common.privacy.noise`. Sources, named in the lines that implement them:

- Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018.
- Bun, Steinke, "Concentrated Differential Privacy", TCC 2016.
- Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020.
- Dong, Roth, Su, "Gaussian Differential Privacy", JRSS B 2022.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr

from common.errors import ConfigError

__all__ = [
    "check_epsilon_delta",
    "discrete_gaussian_sigma",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_sigma",
    "loss_lattice",
    "mu_of_rho",
    "unit_shift_delta",
    "unit_shift_epsilon",
    "zcdp_epsilon",
    "zcdp_sigma",
]

_LARGEST_MU = 1e3
_SMALLEST_MU = 1e-9


def _root(function: Callable[[float], float], low: float, high: float, within: float) -> float:
    """Return where a function that has other signs at the two ends is 0, but for ``within``."""
    from scipy.optimize import brentq  # a quarter of a second, which most runs need not spend

    return float(brentq(function, low, high, xtol=within))


def check_epsilon_delta(epsilon: float, delta: float) -> None:
    """Refuse a promise that is none: epsilon > 0 and 0 < delta < 1."""
    if not (0 < epsilon < math.inf):
        raise ConfigError(f"epsilon = {epsilon}: must be above 0 and finite")
    _check_delta(delta)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ConfigError(f"delta = {delta}: must be above 0 and below 1")


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the exact delta of Gaussian noise with sensitivity / sigma = ``mu`` at ``epsilon``."""
    # Balle & Wang 2018, theorem 8; in logarithms, for e^epsilon overflows.
    first = float(log_ndtr(-epsilon / mu + mu / 2))
    second = epsilon + float(log_ndtr(-epsilon / mu - mu / 2))
    return math.exp(first) * -math.expm1(min(second - first, 0.0))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 of Gaussian noise with sensitivity / sigma = ``mu``.

    >>> round(gaussian_epsilon(1.0, 1e-5), 3)
    4.377
    """
    _check_delta(delta)
    if mu <= 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # The loss is N(mu²/2, mu²), and log(1/delta) bounds how far into its tail epsilon can lie.
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return _root(lambda e: gaussian_delta(mu, e) - delta, 0.0, high, 1e-12)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest sensitivity / sigma for which Gaussian noise is (epsilon, delta)-DP.

    >>> round(gaussian_mu(gaussian_epsilon(0.5, 1e-5), 1e-5), 6)
    0.5
    """
    check_epsilon_delta(epsilon, delta)
    lowest, highest = math.log(_SMALLEST_MU), math.log(_LARGEST_MU)
    return math.exp(
        _root(lambda m: gaussian_delta(math.exp(m), epsilon) - delta, lowest, highest, 1e-13)
    )


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return the standard deviation of the analytic Gaussian mechanism, in the value's own unit.

    >>> round(gaussian_sigma(1, 1e-5, math.sqrt(2)), 2)
    5.28
    """
    if not 0 < sensitivity < math.inf:
        raise ConfigError(f"sensitivity = {sensitivity}: must be above 0 and finite")
    return sensitivity / gaussian_mu(epsilon, delta)


# Zero-concentrated differential privacy --------------------------------------------------------


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return the epsilon that rho-zCDP amounts to at ``delta``, by the tight conversion.

    >>> [round(zcdp_epsilon(rho, 1e-5), 2) for rho in (0.1, 1, 5)]
    [1.91, 7.08, 19.05]
    """
    _check_delta(delta)
    if not 0 <= rho < math.inf:
        raise ConfigError(f"rho = {rho}: must be at least 0 and finite")
    if rho == 0:
        return 0.0

    # Canonne, Kamath, Steinke 2020, corollary 13, with alpha = 1 + e^x.
    def epsilon(x: float) -> float:
        order = math.exp(x)
        tail = math.log(1 / delta) - (order + 1) * math.log1p(1 / order) - x
        return rho * (1 + order) + tail / order

    from scipy.optimize import minimize_scalar  # as _root

    best = minimize_scalar(epsilon, bounds=(-20.0, 20.0), method="bounded", options={"xatol": 1e-9})
    return max(0.0, float(best.fun))


def mu_of_rho(rho: float) -> float:
    """Return sensitivity / sigma of the Gaussian noise that is rho-zCDP: rho = mu²/2."""
    return math.sqrt(2 * rho)  # Bun & Steinke 2016, proposition 1.6


def zcdp_sigma(rho: float, sensitivity: float) -> float:
    """Return the standard deviation of Gaussian noise that is rho-zCDP."""
    if not 0 < rho < math.inf:
        raise ConfigError(f"rho = {rho}: must be above 0 and finite")
    return sensitivity / mu_of_rho(rho)


# The discrete Gaussian --------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def discrete_gaussian_sigma(epsilon: float, delta: float, coordinates: int) -> float:
    """Return the sigma of discrete Gaussian noise on integers, exact for its own distribution.

    Two neighbours differ by 1 in each of ``coordinates`` entries, so the sensitivity is its square
    root. The analytic Gaussian's sigma is the start: on integers it promises a little less where it
    is near 1 (epsilon 8 would be 8.15), and is then raised until the promise holds.
    """
    sigma = gaussian_sigma(epsilon, delta, math.sqrt(coordinates))
    if unit_shift_delta(sigma, coordinates, epsilon) <= delta:
        return sigma
    high = sigma
    while unit_shift_delta(high, coordinates, epsilon) > delta:
        high *= 1.05
    # The curve is not monotone in every detail, so the end that was checked is returned.
    for _ in range(40):
        middle = (sigma + high) / 2
        if unit_shift_delta(middle, coordinates, epsilon) > delta:
            sigma = middle
        else:
            high = middle
    return high


def loss_lattice(sigma: float, coordinates: int) -> tuple[np.ndarray, np.ndarray]:
    """Return privacy losses (m,), ascending and evenly spaced, and their probabilities (m,).

    Of discrete Gaussian noise when ``coordinates`` entries differ by 1, whatever their signs.
    """
    reach = math.ceil(12 * sigma) + 1  # beyond it lies less than e^-72
    y = np.arange(-reach, reach + 1)
    one = np.exp(-(y**2) / (2 * sigma**2))
    one /= one.sum()
    probabilities = np.ones(1)
    for _ in range(coordinates):
        probabilities = np.convolve(probabilities, one)
    total = np.arange(-coordinates * reach, coordinates * reach + 1)
    # ln of the ratio of two discrete Gaussians 1 apart is (1 - 2y)/(2 sigma²); it adds up.
    losses = (coordinates + 2 * total) / (2 * sigma**2)
    return losses, probabilities


def unit_shift_delta(sigma: float, coordinates: int, epsilon: float) -> float:
    """Return the exact delta of discrete Gaussian noise at ``epsilon``."""
    # Canonne, Kamath, Steinke 2020, theorem 7, for several coordinates.
    losses, probabilities = loss_lattice(sigma, coordinates)
    return float(probabilities @ np.maximum(0.0, -np.expm1(epsilon - losses)))


def unit_shift_epsilon(sigma: float, coordinates: int, delta: float) -> float:
    """Return the smallest epsilon >= 0 of discrete Gaussian noise at ``delta``."""
    _check_delta(delta)
    if unit_shift_delta(sigma, coordinates, 0.0) <= delta:
        return 0.0
    high = float(loss_lattice(sigma, coordinates)[0][-1])
    return _root(lambda e: unit_shift_delta(sigma, coordinates, e) - delta, 0.0, high, 1e-12)
