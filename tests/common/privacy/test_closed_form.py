"""Noise for a promise, against what the promise means."""

import math

import numpy as np
import privacy_losses
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from common.errors import ConfigError
from common.privacy import closed_form
from common.privacy.accounting import DiscreteGaussian, epsilon

EPSILONS = st.floats(0.05, 30)
DELTAS = st.floats(1e-9, 1e-2)


def test_known_sigmas_of_a_histogram():
    sigmas = [closed_form.gaussian_sigma(epsilon, 1e-5, math.sqrt(2)) for epsilon in (1, 2, 4, 8)]
    assert np.round(sigmas, 2).tolist() == [5.28, 2.82, 1.53, 0.85]


def test_known_epsilons_of_zcdp():
    assert round(closed_form.zcdp_epsilon(0.1, 1e-5), 2) == 1.91
    assert round(closed_form.zcdp_epsilon(1, 1e-5), 2) == 7.08
    assert round(closed_form.zcdp_epsilon(5, 1e-5), 1) == 19.0


@given(EPSILONS, DELTAS, st.floats(0.01, 100))
def test_sigma_gives_the_delta_that_was_asked_for_and_less_noise_does_not(epsilon, delta, size):
    sigma = closed_form.gaussian_sigma(epsilon, delta, size)
    # delta by its definition: P[loss > e] - e^e Q[loss > e], here written out with the two tails.
    edge = epsilon * sigma / size
    exact = norm.sf(edge - size / sigma / 2) - math.exp(epsilon) * norm.sf(edge + size / sigma / 2)
    assert exact == pytest.approx(delta, rel=1e-6, abs=1e-14)
    assert closed_form.gaussian_epsilon(size / (0.99 * sigma), delta) > epsilon
    assert closed_form.gaussian_epsilon(size / sigma, delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("rho", [1e-4, 0.01, 0.1, 1, 5, 50])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_zcdp_conversion_is_the_best_over_all_orders(rho, delta):
    # Canonne, Kamath, Steinke 2020, corollary 13, at many orders
    order = np.logspace(-5, 5, 200_001)
    tail = math.log(1 / delta) - (order + 1) * np.log1p(1 / order) - np.log(order)
    best = max(0.0, (rho * (1 + order) + tail / order).min())
    assert closed_form.zcdp_epsilon(rho, delta) == pytest.approx(best, rel=1e-4)


@given(st.floats(1e-6, 100), DELTAS)
def test_zcdp_never_promises_more_than_the_noise_it_is_made_of(rho, delta):
    exact = closed_form.gaussian_epsilon(closed_form.mu_of_rho(rho), delta)
    assert closed_form.zcdp_epsilon(rho, delta) >= exact - 1e-9


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1, 2, 4, 8, 12])
@pytest.mark.parametrize("coordinates", [1, 2])
def test_discrete_gaussian_keeps_its_promise(epsilon, coordinates):
    sigma = closed_form.discrete_gaussian_sigma(epsilon, 1e-5, coordinates)
    least, _ = privacy_losses.bounds([DiscreteGaussian(sigma, coordinates)], 1e-5)
    assert least <= epsilon
    assert closed_form.gaussian_sigma(epsilon, 1e-5, math.sqrt(coordinates)) <= sigma
    assert sigma <= 1.05 * closed_form.gaussian_sigma(epsilon, 1e-5, math.sqrt(coordinates))


def test_on_integers_the_analytic_sigma_would_promise_too_little():
    sigma = closed_form.gaussian_sigma(8, 1e-5, math.sqrt(2))
    assert epsilon([DiscreteGaussian(sigma, 2)], 1e-5) == pytest.approx(8.154, abs=1e-3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: closed_form.gaussian_sigma(0, 1e-5, 1),
        lambda: closed_form.gaussian_sigma(math.inf, 1e-5, 1),
        lambda: closed_form.gaussian_sigma(1, 0, 1),
        lambda: closed_form.gaussian_sigma(1, 1, 1),
        lambda: closed_form.gaussian_sigma(1, 1e-5, 0),
        lambda: closed_form.zcdp_epsilon(-1, 1e-5),
        lambda: closed_form.zcdp_epsilon(1, 0),
        lambda: closed_form.zcdp_sigma(0, 1),
    ],
)
def test_what_is_no_promise_is_refused(call):
    with pytest.raises(ConfigError, match="must be"):
        call()
