"""Accounting: what mechanisms of one unit add up to, composed once, read off at one delta.

Gaussian events compose exactly and in closed form. Everything else goes through the distribution
of the privacy loss, on a grid that is never optimistic. Sources:

- Dong, Roth, Su, "Gaussian Differential Privacy", JRSS B 2022: Gaussians compose by mu².
- Koskela, Jälkö, Honkela, "Computing Tight Differential Privacy Guarantees Using FFT", 2020.
- Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots: Tighter Discrete Approximations
  of Privacy Loss Distributions", PoPETs 2022: how a loss between two points of the grid is shared.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from common.errors import ConfigError
from common.privacy.closed_form import check_epsilon_delta, gaussian_epsilon, loss_lattice

__all__ = [
    "ContinuousGaussian",
    "DiscreteGaussian",
    "Event",
    "RandomisedResponse",
    "Stated",
    "decode_event",
    "encode_event",
    "epsilon",
]

FloatArray = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True)
class ContinuousGaussian:
    """Gaussian noise; zCDP at rho is mu = sqrt(2 rho)."""

    mu: float
    """Sensitivity / sigma, > 0."""

    def __post_init__(self) -> None:
        """Refuse what is no noise."""
        _check("mu", self.mu)


@dataclass(frozen=True)
class DiscreteGaussian:
    """Discrete Gaussian noise on integers of which ``coordinates`` differ by 1."""

    sigma: float
    coordinates: int

    def __post_init__(self) -> None:
        """Refuse what is no noise."""
        _check("sigma", self.sigma)
        _check("coordinates", self.coordinates)


@dataclass(frozen=True)
class RandomisedResponse:
    """One of k answers: the true one e^epsilon times as likely as any other."""

    epsilon: float
    categories: int

    def __post_init__(self) -> None:
        """Refuse what is no choice."""
        _check("epsilon", self.epsilon)
        if self.categories < 2:
            raise ConfigError(f"categories = {self.categories}: randomised response needs 2")

    @property
    def truth(self) -> float:
        """Probability of the true answer; each other one is e^epsilon times less likely."""
        return 1 / (1 + (self.categories - 1) * math.exp(-self.epsilon))


@dataclass(frozen=True)
class Stated:
    """A mechanism of which only its (epsilon, delta) is known; these add."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is no promise; delta may be 0 here."""
        check_epsilon_delta(self.epsilon, self.delta or 0.5)


Event = ContinuousGaussian | DiscreteGaussian | RandomisedResponse | Stated

_KINDS: Mapping[str, type[Event]] = {
    "gaussian": ContinuousGaussian,
    "discrete-gaussian": DiscreteGaussian,
    "randomised-response": RandomisedResponse,
    "stated": Stated,
}


def encode_event(event: Event) -> dict[str, Any]:
    """Return an event as JSON holds it."""
    [kind] = (name for name, known in _KINDS.items() if type(event) is known)
    return {"kind": kind, **vars(event)}


def decode_event(value: Mapping[str, Any]) -> Event:
    """Return the event that :func:`encode_event` wrote."""
    fields = {key: entry for key, entry in value.items() if key != "kind"}
    return _KINDS[value["kind"]](**fields)


def _check(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(f"{name} = {value}: must be above 0 and finite")


def epsilon(events: Sequence[Event], delta: float) -> float:
    """Return the epsilon that events on the same data amount to at ``delta``; inf: none does.

    Adding an event never lowers it. The order does not matter, and later events may depend on the
    answers of earlier ones.

    >>> two = epsilon([ContinuousGaussian(0.3), ContinuousGaussian(0.4)], 1e-5)
    >>> one = epsilon([ContinuousGaussian(0.5)], 1e-5)
    >>> round(two, 6) == round(one, 6)
    True
    """
    stated = [event for event in events if isinstance(event, Stated)]
    left = delta - sum(event.delta for event in stated)
    rest = [event for event in events if not isinstance(event, Stated)]
    if left < 0 or (left == 0 and rest):
        return math.inf
    own = _mechanisms(frozenset(Counter(rest).items()), left) if rest else 0.0
    return sum(event.epsilon for event in stated) + own


@functools.lru_cache(maxsize=256)
def _mechanisms(events: frozenset[tuple[Event, int]], delta: float) -> float:
    """Return epsilon of mechanisms with how often each was used."""
    # Dong, Roth, Su 2022, corollary 2: Gaussians compose to mu = sqrt(sum of mu²).
    mu = math.sqrt(sum(n * e.mu**2 for e, n in events if isinstance(e, ContinuousGaussian)))
    others = [(e, n) for e, n in events if not isinstance(e, ContinuousGaussian)]
    if not others:
        return gaussian_epsilon(mu, delta) if mu else 0.0
    if len(others) == 1 and not mu:
        losses, masses = _repeated_as_they_are(*others[0])
        return _epsilon_of_losses(losses, masses, delta)
    parts = [_on_grid(event, count, _step(events)) for event, count in others]
    parts += [_gaussian_on_grid(mu, _step(events))] if mu else []
    total = functools.reduce(_Grid.beside, parts)
    points: FloatArray = np.arange(len(total.masses), dtype=np.float64) + total.first
    return _epsilon_of_losses(points * total.step, total.masses, delta - total.lost)


# Losses as they are ------------------------------------------------------------------------------


def _losses(event: Event) -> tuple[FloatArray, FloatArray]:
    """Return the losses (m,) of one event, evenly spaced and ascending, and their probabilities."""
    if isinstance(event, DiscreteGaussian):
        return loss_lattice(event.sigma, event.coordinates)
    assert isinstance(event, RandomisedResponse)
    # Neighbours exchange the roles of two answers; the other k - 2 say nothing.
    other = event.truth * math.exp(-event.epsilon)
    rest = max(0.0, 1 - event.truth - other)
    losses = np.array([-event.epsilon, 0.0, event.epsilon])
    return losses, np.array([other, rest, event.truth])


def _repeated_as_they_are(event: Event, times: int) -> tuple[FloatArray, FloatArray]:
    """Return the losses of equal events and their masses, on their own spacing: nothing rounded."""
    losses, masses = _losses(event)
    total = _by_squaring(masses, times, _convolved)
    return times * losses[0] + (losses[1] - losses[0]) * np.arange(len(total)), total


def _by_squaring(one: T, times: int, add: Callable[[T, T], T]) -> T:
    """Return ``times`` >= 1 of the same thing added up."""
    total: T | None = None
    while True:
        if times % 2:
            total = one if total is None else add(total, one)
        times //= 2
        if not times:
            assert total is not None
            return total
        one = add(one, one)


def _convolved(one: FloatArray, other: FloatArray) -> FloatArray:
    from scipy.signal import fftconvolve  # half a second to load, for few runs

    result: FloatArray = np.maximum(fftconvolve(one, other), 0.0)
    return result


def _epsilon_of_losses(losses: FloatArray, masses: FloatArray, delta: float) -> float:
    """Return the smallest epsilon >= 0 at which the losses above it weigh at most ``delta``."""
    if delta <= 0:
        return math.inf
    positive = losses > 0  # the others count for epsilon < 0 alone
    losses, masses = losses[positive][::-1], masses[positive][::-1]
    # delta(e) = sum of (p - e^e q) over losses above e; between two losses e solves it directly.
    p, q = np.cumsum(masses), np.cumsum(masses * np.exp(-losses))
    above = int(np.searchsorted(p - np.exp(np.minimum(losses, 700)) * q, delta, side="right"))
    if above == 0:
        return float(losses[0])
    if p[above - 1] <= delta:
        return 0.0
    return max(0.0, math.log((p[above - 1] - delta) / q[above - 1]))


# Losses on a common grid -------------------------------------------------------------------------

_TAIL = 1e-16  # mass that a grid gives up at its upper end, at most; it then counts as lost


@dataclass(frozen=True, eq=False)
class _Grid:
    """Probabilities (m,) of the losses ``(first + 0 .. m-1) * step``, and what lies above all."""

    first: int
    masses: FloatArray
    step: float
    lost: float = 0.0

    def beside(self, other: "_Grid") -> "_Grid":
        """Return the sum of two independent losses."""
        masses = _convolved(self.masses, other.masses)
        lost = self.lost + other.lost
        return _Grid(self.first + other.first, masses, self.step, lost)._trimmed()

    def _trimmed(self) -> "_Grid":
        """Cut the ends that weigh nothing: above they are lost, below they move up."""
        below = int(np.searchsorted(np.cumsum(self.masses), _TAIL))
        above = len(self.masses) - int(np.searchsorted(np.cumsum(self.masses[::-1]), _TAIL))
        masses = self.masses[below:above].copy()
        masses[0] += self.masses[:below].sum()
        lost = self.lost + float(self.masses[above:].sum())
        return _Grid(self.first + below, masses, self.step, lost)


def _step(events: frozenset[tuple[Event, int]]) -> float:
    """Return a spacing that is fine for the smallest of the losses."""
    sizes = {
        ContinuousGaussian: lambda e: e.mu,
        DiscreteGaussian: lambda e: math.sqrt(e.coordinates) / e.sigma,
        RandomisedResponse: lambda e: e.epsilon,
    }
    smallest = min(sizes[type(event)](event) for event, _ in events)
    return float(min(1e-3, max(smallest / 50, 1e-5)))


def _shared(p: FloatArray, q: FloatArray, first: int, step: float, lost: float) -> _Grid:
    """Return cells' masses moved to the cells' ends, (m,) cells -> (m + 1,) points.

    A cell between two points holds ``p`` under one data set and ``q`` under its neighbour; the
    ends get what keeps both. That spreads the ratio p/q, so that no divergence can shrink
    (Doroshenko et al. 2022): the bound is never optimistic, and its error is of second order.
    """
    low = (first + np.arange(len(p))) * step
    # p_high + p_low = p and p_high e^-high + p_low e^-low = q.
    high_share = (p - q * np.exp(low)) / -math.expm1(-step)
    high_share = np.clip(high_share, 0.0, p)
    masses = np.zeros(len(p) + 1)
    masses[:-1] += p - high_share
    masses[1:] += high_share
    return _Grid(first, masses, step, lost)


def _on_grid(event: Event, times: int, step: float) -> _Grid:
    losses, masses = _losses(event)
    cells = np.floor(losses / step).astype(np.int64)
    first = int(cells[0])
    p, q = np.zeros((2, int(cells[-1]) - first + 1))
    np.add.at(p, cells - first, masses)
    np.add.at(q, cells - first, masses * np.exp(-losses))
    return _by_squaring(_shared(p, q, first, step, 0.0)._trimmed(), times, _Grid.beside)


def _gaussian_on_grid(mu: float, step: float) -> _Grid:
    """Return the loss N(mu²/2, mu²), or N(-mu²/2, mu²) under the neighbour."""
    reach = 8.3 * mu  # beyond it lies less than 1e-16
    first = math.floor((mu * mu / 2 - reach) / step)
    last = math.ceil((mu * mu / 2 + reach) / step)
    edges: FloatArray = np.arange(first, last + 1, dtype=np.float64) * step
    p, q = (_between((edges - mean) / mu) for mean in (mu * mu / 2, -mu * mu / 2))
    p[0] += ndtr((edges[0] - mu * mu / 2) / mu)
    q[0] += ndtr((edges[0] + mu * mu / 2) / mu)
    return _shared(p, q, first, step, float(ndtr(-(edges[-1] - mu * mu / 2) / mu)))


def _between(edges: FloatArray) -> FloatArray:
    """Return the normal probability of each cell, accurate in both tails."""
    upper = edges[:-1] > 0
    cells: FloatArray = np.where(
        upper, ndtr(-edges[:-1]) - ndtr(-edges[1:]), ndtr(edges[1:]) - ndtr(edges[:-1])
    )
    return cells
