"""The accountant against dp-accounting, and what must hold whatever the events are."""

import functools
import json
import math

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigError
from common.privacy.accounting import (
    ContinuousGaussian,
    DiscreteGaussian,
    RandomisedResponse,
    Stated,
    decode_event,
    encode_event,
    epsilon,
)
from common.privacy.closed_form import discrete_gaussian_sigma

EVENTS = st.one_of(
    st.builds(ContinuousGaussian, st.floats(0.02, 3)),
    st.builds(DiscreteGaussian, st.floats(0.5, 20), st.integers(1, 2)),
    st.builds(RandomisedResponse, st.floats(0.05, 4), st.integers(2, 20)),
    st.builds(Stated, st.floats(0.01, 2), st.sampled_from([0.0, 1e-7])),
)

CASES = {
    "gaussians": [ContinuousGaussian(0.3)] * 5 + [ContinuousGaussian(1.0)],
    "histogram": [DiscreteGaussian(5.276, 2)],
    "histogram, little noise": [DiscreteGaussian(0.8588, 2)],
    "histograms": [DiscreteGaussian(5.276, 2)] * 3,
    "two sigmas": [DiscreteGaussian(2.82, 2), DiscreteGaussian(5.276, 2)],
    "labels": [RandomisedResponse(1, 10)],
    "labels often": [RandomisedResponse(0.1, 10)] * 30,
    "labels and a Gaussian": [RandomisedResponse(0.5, 10), ContinuousGaussian(0.5)],
    "all": [RandomisedResponse(0.5, 4)] * 3 + [DiscreteGaussian(2.8, 2), ContinuousGaussian(0.5)],
    "large": [RandomisedResponse(5, 10), DiscreteGaussian(0.6, 2), ContinuousGaussian(2)],
}


@functools.lru_cache
def distribution(event):
    step = 1e-4
    if isinstance(event, ContinuousGaussian):
        return pld.from_gaussian_mechanism(1 / event.mu, value_discretization_interval=step)
    if isinstance(event, DiscreteGaussian):
        one = pld.from_discrete_gaussian_mechanism(
            event.sigma, sensitivity=1, value_discretization_interval=step
        )
        return one.self_compose(event.coordinates)
    noise = event.categories * event.truth * math.exp(-event.epsilon)
    return pld.from_randomized_response(noise, event.categories, value_discretization_interval=step)


@pytest.mark.parametrize("events", CASES.values(), ids=CASES)
def test_epsilon_is_within_one_per_cent_of_dp_accounting(events):
    parts = [distribution(event) for event in events]
    total = functools.reduce(lambda one, other: one.compose(other), parts)
    for delta in (1e-3, 1e-5, 1e-8):
        oracle = total.get_epsilon_for_delta(delta)
        assert epsilon(events, delta) == pytest.approx(oracle, rel=0.01)


@settings(deadline=None, max_examples=60)
@given(st.lists(EVENTS, max_size=5), EVENTS, st.sampled_from([1e-3, 1e-5, 1e-7]))
def test_one_more_event_never_costs_less(events, more, delta):
    assert epsilon([*events, more], delta) >= epsilon(events, delta) * (1 - 1e-6) - 1e-9


@settings(deadline=None, max_examples=30)
@given(st.lists(EVENTS, min_size=1, max_size=4))
def test_the_order_does_not_matter_and_less_delta_costs_more(events):
    assert epsilon(events[::-1], 1e-5) == pytest.approx(epsilon(events, 1e-5), rel=1e-9)
    assert epsilon(events, 1e-7) >= epsilon(events, 1e-5) - 1e-9


@settings(deadline=None, max_examples=30)
@given(st.lists(st.builds(RandomisedResponse, st.floats(0.05, 4), st.just(5)), max_size=5))
def test_pure_events_never_cost_more_than_their_sum(events):
    assert epsilon(events, 1e-5) <= 1.001 * sum(event.epsilon for event in events)


def test_stated_promises_add_and_use_up_delta():
    assert epsilon([Stated(1, 1e-6), Stated(2, 1e-6)], 1e-5) == 3
    assert epsilon([Stated(1, 1e-5)], 1e-5) == 1
    assert epsilon([Stated(1, 2e-5)], 1e-5) == math.inf
    with_less = epsilon([Stated(1, 5e-6), ContinuousGaussian(0.5)], 1e-5)
    assert with_less == pytest.approx(1 + epsilon([ContinuousGaussian(0.5)], 5e-6))
    assert epsilon([], 1e-5) == 0


def test_one_release_costs_what_was_set():
    """Through zCDP the noise for epsilon 1 would count as 1.09 and refuse itself."""
    for value in (0.5, 1, 2, 4, 8):
        sigma = discrete_gaussian_sigma(value, 1e-5, 2)
        assert epsilon([DiscreteGaussian(sigma, 2)], 1e-5) <= value * (1 + 1e-9)
        assert epsilon([DiscreteGaussian(sigma, 2)], 1e-5) > 0.99 * value


@settings(deadline=None)
@given(EVENTS)
def test_events_survive_json(event):
    assert decode_event(json.loads(json.dumps(encode_event(event)))) == event


@pytest.mark.parametrize(
    "make",
    [
        lambda: ContinuousGaussian(0),
        lambda: ContinuousGaussian(math.inf),
        lambda: DiscreteGaussian(1, 0),
        lambda: DiscreteGaussian(-1, 2),
        lambda: RandomisedResponse(1, 1),
        lambda: RandomisedResponse(0, 4),
        lambda: Stated(0),
        lambda: Stated(1, 1),
    ],
)
def test_what_is_no_mechanism_is_refused(make):
    with pytest.raises(ConfigError):
        make()
