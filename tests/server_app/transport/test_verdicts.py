"""Verdicts and groups by hand, and what they promise for any costs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster

from common.errors import ConfigError
from server_app.clustering.algorithms import Clusters
from server_app.transport.verdicts import (
    Thresholds,
    Verdict,
    grouped,
    overall,
    site_verdict,
    symmetric,
)

B, U, D, N = Verdict.BENEFICIAL, Verdict.UNCERTAIN, Verdict.DETRIMENTAL, Verdict.NOTHING
LIMITS = Thresholds(0.2, 0.3)


@pytest.mark.parametrize(
    ("cost", "null_high", "verdict"),
    [
        (0.0, np.nan, B),
        (0.2, np.nan, B),
        (0.21, np.nan, U),
        (0.3, np.nan, D),
        (1.0, np.nan, D),
        (np.nan, np.nan, N),
        # Within the null: equal data, as long as chance alone stays in the beneficial range.
        (0.05, 0.06, B),
        (0.05, 0.21, U),
        (0.25, 0.26, U),
        (0.5, 0.5, U),
        # Beyond the null the thresholds decide.
        (0.19, 0.1, B),
        (0.31, 0.3, D),
    ],
)
def test_a_cost_is_judged_by_its_thresholds_and_its_null(cost, null_high, verdict):
    assert LIMITS.judge(cost, null_high) is verdict


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_null_never_makes_a_cost_more_certain(cost, null_high):
    with_null, without = LIMITS.judge(cost, null_high), LIMITS.judge(cost)
    assert with_null in (without, U)
    if cost > null_high:
        assert with_null is without
    elif null_high > LIMITS.beneficial:
        assert with_null is U


@pytest.mark.parametrize("pair", [(0.3, 0.3), (0.3, 0.2), (0.0, 0.3), (0.2, 1.1)])
def test_thresholds_out_of_order_are_refused(pair):
    with pytest.raises(ConfigError, match=f"ot-beneficial = {pair[0]}"):
        Thresholds(*pair)


def matrix(n, **costs):
    """Costs of pairs named as ``p01``, 0.5 where none is named."""
    full = np.full((n, n), 0.5)
    np.fill_diagonal(full, 0)
    for name, cost in costs.items():
        i, j = int(name[1]), int(name[2])
        full[i, j] = full[j, i] = cost
    return full


def test_groups_merge_while_their_mean_cost_is_below_the_threshold():
    costs = matrix(5, p01=0.1, p34=0.05, p02=0.1, p12=0.55)
    # 2 is at 0.325 from {0, 1} on average: apart, though at 0.1 from 0.
    clusters, merges = grouped(costs, LIMITS)
    assert clusters.labels.tolist() == [0, 0, 1, 2, 2]
    np.testing.assert_allclose(merges[:3, 2], [0.05, 0.1, 0.325])
    assert grouped(costs, Thresholds(0.2, 0.33))[0].labels.tolist() == [0, 0, 0, 1, 1]
    assert grouped(costs, LIMITS, num_clusters=2)[0].labels.tolist() == [0, 0, 0, 1, 1]


def test_a_cost_at_the_threshold_keeps_sites_apart():
    assert grouped(matrix(2, p01=0.3), LIMITS)[0].k == 2
    assert grouped(matrix(2, p01=0.2999), LIMITS)[0].k == 1


def test_sites_without_anything_to_compare_stay_apart():
    costs = matrix(3, p01=0.1, p02=np.nan, p12=np.nan)
    assert grouped(costs, LIMITS)[0].labels.tolist() == [0, 0, 1]
    assert grouped(np.zeros((1, 1)), LIMITS)[0].labels.tolist() == [0]


@given(st.integers(2, 9), st.integers(0, 10_000))
def test_groups_are_those_of_scipy_and_do_not_depend_on_the_order_of_sites(n, seed):
    rng = np.random.default_rng(seed)
    costs = symmetric(rng.random((n, n)))
    np.fill_diagonal(costs, 0)
    clusters, merges = grouped(costs, LIMITS)
    oracle = Clusters.from_labels(fcluster(merges, np.nextafter(0.3, 0), "distance"))
    assert clusters == oracle
    order = rng.permutation(n)
    again, _ = grouped(costs[np.ix_(order, order)], LIMITS)
    assert Clusters.from_labels(clusters.labels[order]) == Clusters.from_labels(again.labels)


def verdict_of(site, costs, labels, highs=None):
    highs = np.full_like(costs, np.nan) if highs is None else highs
    return site_verdict(site, costs, highs, Clusters(np.array(labels)), LIMITS)


def test_a_site_in_a_group_is_judged_by_its_mean_cost_there():
    costs = matrix(3, p01=0.15, p02=0.29, p12=0.1)
    verdict, cost, high = verdict_of(0, costs, [0, 0, 0])
    assert (verdict, cost) == (U, pytest.approx(0.22))
    assert np.isnan(high)
    assert verdict_of(1, costs, [0, 0, 0])[0] is B
    # Its own null: chance alone reaches beyond the beneficial range.
    wide = np.full((3, 3), 0.24)
    assert verdict_of(1, costs, [0, 0, 0], wide)[0] is U


def test_a_site_alone_is_judged_by_everybody():
    costs = matrix(3, p01=0.1)
    assert verdict_of(2, costs, [0, 0, 1])[0] is D
    costs[1, 2] = costs[2, 1] = 0.25
    verdict, cost, _ = verdict_of(2, costs, [0, 0, 1])
    assert (verdict, cost) == (U, 0.25)
    # 0.5 may be chance: nothing says that it fits nobody.
    wide = np.full((3, 3), 0.6)
    assert verdict_of(2, matrix(3, p01=0.1), [0, 0, 1], wide)[0] is U
    nothing = matrix(3, p02=np.nan, p12=np.nan)
    assert verdict_of(2, nothing, [0, 0, 1])[0] is N


@pytest.mark.parametrize(
    ("verdicts", "word"),
    [
        ([B, B, D], B),
        ([B, U], U),
        ([D, B], U),
        ([U, U, B], U),
        ([D, D, U], D),
        ([B, N, N], B),
        ([N, N], U),
        ([], U),
        ([B, B, D, D, U], U),
    ],
)
def test_a_federation_is_told_what_most_of_its_sites_are(verdicts, word):
    assert overall(verdicts) is word


def test_both_orders_of_a_pair_count_alike():
    np.testing.assert_allclose(
        symmetric(np.array([[0, 0.2], [0.4, 0]])), np.array([[0, 0.3], [0.3, 0]])
    )
