"""Accounting: what mechanisms of one unit add up to, composed once, read off at one delta.

The arithmetic is that of Google's ``dp-accounting``: Gaussian events compose exactly and in closed
form, everything else goes through the distribution of the privacy loss, on a grid that is never
optimistic. It is loaded when something is counted, and not before: it takes half a second.
"""

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import ConfigError
from common.privacy.closed_form import gaussian_epsilon, unit_shift_losses

__all__ = [
    "ContinuousGaussian",
    "DiscreteGaussian",
    "Event",
    "RandomisedResponse",
    "decode_event",
    "encode_event",
    "epsilon",
]

_STEP = 1e-4
"""Spacing of the grid on which losses of different kinds are added."""


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
        """Probability of the true answer."""
        return 1 / (1 + (self.categories - 1) * math.exp(-self.epsilon))

    @property
    def other(self) -> float:
        """Probability of each other answer, e^epsilon times less likely."""
        return self.truth * math.exp(-self.epsilon)


Event = ContinuousGaussian | DiscreteGaussian | RandomisedResponse

_KINDS: Mapping[str, type[Event]] = {
    "gaussian": ContinuousGaussian,
    "discrete-gaussian": DiscreteGaussian,
    "randomised-response": RandomisedResponse,
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
    if not (math.isfinite(value) and value > 0):  # one of 400 digits is no float
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
    return _composed(frozenset(Counter(events).items()), delta)


@functools.lru_cache(maxsize=256)
def _composed(events: frozenset[tuple[Event, int]], delta: float) -> float:
    """Return epsilon of mechanisms with how often each was used."""
    # Dong, Roth, Su, "Gaussian Differential Privacy", JRSS B 2022, corollary 2: Gaussians compose
    # to mu = sqrt(sum of mu²).
    mu = math.sqrt(math.fsum(n * e.mu**2 for e, n in events if isinstance(e, ContinuousGaussian)))
    others = [(e, n) for e, n in events if not isinstance(e, ContinuousGaussian)]
    if not others:
        return gaussian_epsilon(mu, delta)
    if len(others) == 1 and not mu:
        [(event, times)] = others
        total = _as_it_is(event).self_compose(times)
    else:
        parts = [_on_grid(event).self_compose(times) for event, times in others]
        parts += [_on_grid(ContinuousGaussian(mu))] if mu else []
        total = functools.reduce(lambda one, other: one.compose(other), parts)
    return float(total.get_epsilon_for_delta(delta))


def _as_it_is(event: Event) -> Any:
    """Return the distribution of an event's loss on the loss's own lattice: nothing is rounded.

    So a release whose noise was made for epsilon costs that, and not a step of a grid more, at
    which a site's budget of the same epsilon would refuse it.
    """
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    if isinstance(event, DiscreteGaussian):
        numbers, masses, step = unit_shift_losses(event.sigma, event.coordinates)
        losses = dict(zip(numbers, masses.tolist(), strict=True))
    else:
        assert isinstance(event, RandomisedResponse)
        # Neighbours exchange the roles of two answers; the other k - 2 say nothing.
        rest = max(0.0, 1 - event.truth - event.other)
        losses, step = {-1: event.other, 0: rest, 1: event.truth}, event.epsilon
    return PrivacyLossDistribution.create_from_rounded_probability(losses, 0.0, step)


def _on_grid(event: Event) -> Any:
    """Return the distribution of an event's loss on the grid that all kinds have in common."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    step = {"value_discretization_interval": _STEP}
    if isinstance(event, ContinuousGaussian):
        return pld.from_gaussian_mechanism(1 / event.mu, **step)
    if isinstance(event, DiscreteGaussian):
        one = pld.from_discrete_gaussian_mechanism(event.sigma, use_connect_dots=True, **step)
        return one.self_compose(event.coordinates)
    at_random = event.categories * event.other  # probability of an answer drawn from all alike
    return pld.from_randomized_response(at_random, event.categories, **step)
