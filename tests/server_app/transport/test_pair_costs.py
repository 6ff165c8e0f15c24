"""The OT cost of a pair, of all pairs, and of a client with itself."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_clients import client, relu_client
from scipy.optimize import linear_sum_assignment

from common.errors import ConfigError, DataError
from server_app.transport.gaussians import hellinger_distance
from server_app.transport.pair_costs import (
    ClassCost,
    OtCost,
    ot_cost,
    pairwise_costs,
)
from server_app.transport.variants import VARIANTS, OtSettings

NAMES = sorted(VARIANTS)


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("solver", ["exact", "sinkhorn"])
def test_identical_rows_cost_nothing(variant, solver):
    h, y = client(0, counts=(70, 62))
    cost = ot_cost(h, y, h, y, variant=variant, solver=solver)
    tolerance = 1e-12 if solver == "exact" else 0.03
    assert cost.total == pytest.approx(0, abs=tolerance)
    assert cost.coverage == (1.0, 1.0)
    for each in cost.per_class.values():
        assert each.feature_cost == pytest.approx(0, abs=tolerance)
        assert each.label_cost == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("variant", NAMES)
def test_opposite_representations_cost_nearly_one(variant):
    h, y = client(1, counts=(80, 80), spread=0.1)
    assert ot_cost(h, y, -h, y, variant=variant).total > 0.9


def test_rectified_representations_never_exceed_half_a_feature_cost():
    for seed in range(5):
        pair = (*relu_client(seed), *relu_client(seed + 50, world=9))
        cost = ot_cost(*pair)
        assert all(each.feature_cost <= 0.5 for each in cost.per_class.values())
    # Directions without a common coordinate reach it.
    left = np.hstack([np.ones((20, 2)), np.zeros((20, 2))])
    y = np.zeros(20, int)
    assert ot_cost(left, y, left[:, ::-1], y).per_class[0].feature_cost == pytest.approx(0.5)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.integers(0, 10_000),
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.integers(1, 30),
    st.floats(-3, 3),
)
def test_whatever_the_rows_costs_are_in_range_and_consistent(
    variant, seed, counts_a, counts_b, d, shift
):
    h_a, y_a = client(seed, counts_a, d)
    h_b, y_b = client(seed + 1, counts_b, d)
    arguments = (h_a, y_a, h_b + shift, y_b)
    if variant == "full-covariance" and d > 2:
        variant = "paper"
    cost = ot_cost(*arguments, variant=variant)
    shared = {k for k in range(4) if (y_a == k).sum() >= 20 and (y_b == k).sum() >= 20}
    assert set(cost.per_class) == shared
    assert (cost.total is None) == (not shared)
    assert all(0 <= share <= 1 for share in cost.coverage)
    if shared:
        costs = [each.cost for each in cost.per_class.values()]
        assert min(costs) - 1e-12 <= cost.total <= max(costs) + 1e-12
        assert 0 <= cost.total <= 1
    if variant == "paper" and shared:
        back = ot_cost(*arguments[2:], *arguments[:2])
        assert back.total == pytest.approx(cost.total, abs=1e-12)
        assert back.coverage == cost.coverage[::-1]


@pytest.mark.parametrize("variant", NAMES)
def test_the_order_of_rows_changes_nothing(variant):
    (h_a, y_a), (h_b, y_b) = client(2, d=3), client(3, d=3)
    order = np.random.default_rng(0).permutation(len(y_a))
    expected = ot_cost(h_a, y_a, h_b, y_b, variant=variant).total
    shuffled = ot_cost(h_a[order], y_a[order], h_b, y_b, variant=variant).total
    assert shuffled == pytest.approx(expected, abs=1e-7)


def test_only_directions_count_for_the_paper():
    (h_a, y_a), (h_b, y_b) = client(2), client(3)
    scaled = h_a * np.random.default_rng(1).uniform(0.1, 10, (len(h_a), 1))
    expected = ot_cost(h_a, y_a, h_b, y_b)
    assert ot_cost(scaled, y_a, h_b, y_b).total == pytest.approx(expected.total, abs=1e-9)
    assert ot_cost(scaled.astype(np.float32), y_a, h_b, y_b).total == pytest.approx(
        expected.total, abs=1e-5
    )


def test_a_class_by_hand():
    # Two directions at a right angle on both sides, in shares 3/4 and 1/2: a quarter of the mass
    # turns by 90 degrees, F = 1/2.
    h_a = np.repeat(np.eye(2), [30, 10], axis=0)
    h_b = np.repeat(np.eye(2), [20, 20], axis=0)
    y = np.zeros(40, int)
    each = ot_cost(h_a, y, h_b, y).per_class[0]
    assert each.feature_cost == pytest.approx(0.125)
    described = [VARIANTS["paper"].describe(h, 0) for h in (h_a, h_b)]
    assert each.label_cost == pytest.approx(hellinger_distance(*described))
    assert each.cost == pytest.approx((2 * 0.125 + each.label_cost) / 3)
    assert (each.rows_a, each.rows_b, each.weight) == (40, 40, 1600)


def test_the_optimum_of_the_combined_cost_is_found_on_features_alone():
    (h_a, y_a), (h_b, y_b) = client(4, counts=(30,)), client(5, counts=(30,), spread=1.0)
    each = ot_cost(h_a, y_a, h_b, y_b, feature_weight=3, label_weight=2).per_class[0]
    norms = np.linalg.norm(h_a, axis=1)[:, None] * np.linalg.norm(h_b, axis=1)
    angles = (1 - h_a @ h_b.T / norms) / 2
    combined = (3 * angles + 2 * each.label_cost) / 5
    assert each.cost == pytest.approx(combined[linear_sum_assignment(combined)].mean())


def test_the_total_weighs_classes_as_the_variant_says():
    (h_a, y_a), (h_b, y_b) = client(6, counts=(60, 20, 10)), client(7, counts=(30, 50, 10), world=1)
    for variant, weights in (
        ("paper", (60 * 30, 20 * 50)),
        ("authors", ((60 / 90 + 30 / 90) / 2, (20 / 90 + 50 / 90) / 2)),
    ):
        cost = ot_cost(h_a, y_a, h_b, y_b, variant=variant)
        by_class = [cost.per_class[label] for label in (0, 1)]
        assert [each.weight for each in by_class] == pytest.approx(weights)
        expected = np.dot(weights, [each.cost for each in by_class]) / sum(weights)
        assert cost.total == pytest.approx(expected)
        assert cost.coverage == (pytest.approx(80 / 90), pytest.approx(80 / 90))


@pytest.mark.parametrize("variant", NAMES)
def test_weights_pick_one_of_the_two_costs(variant):
    (h_a, y_a), (h_b, y_b) = client(8, d=4), client(9, d=4, world=2)
    only = {"variant": variant, "feature_weight": 0.0}
    for each in ot_cost(h_a, y_a, h_b, y_b, **only).per_class.values():
        assert each.cost == pytest.approx(each.label_cost)
    only = {"variant": variant, "label_weight": 0.0}
    for each in ot_cost(h_a, y_a, h_b, y_b, **only).per_class.values():
        assert each.cost == pytest.approx(each.feature_cost)


def test_the_projection_seed_changes_the_label_cost_alone():
    (h_a, y_a), (h_b, y_b) = client(10, d=40), client(11, d=40, spread=0.5)
    first, second = (
        ot_cost(h_a, y_a, h_b, y_b, projection_seed=seed).per_class[0] for seed in (0, 1)
    )
    assert first.feature_cost == second.feature_cost
    assert first.label_cost != pytest.approx(second.label_cost, abs=1e-6)


@pytest.mark.parametrize("variant", NAMES)
def test_without_a_shared_class_there_is_no_value(variant):
    h, y = client(12)
    for other in (y + 5, np.arange(len(y))):
        cost = ot_cost(h, y, h, other, variant=variant)
        assert cost.total is None
        assert cost.per_class == {}
        assert cost.coverage == (0.0, 0.0)
        assert any("nothing to compare" in warning for warning in cost.warnings)
    empty = ot_cost(h[:0], y[:0], h, y, variant=variant)
    assert (empty.total, empty.coverage) == (None, (0.0, 0.0))


def test_warnings_name_the_classes_with_few_rows():
    (h_a, y_a), (h_b, y_b) = client(13, counts=(60, 49, 19)), client(14, counts=(50, 80, 70))
    assert ot_cost(h_a, y_a, h_b, y_b).warnings == (
        "class 1: 49 and 80 rows; fewer than 50 overestimate the cost",
        "class 2 left out: 19 and 70 rows, min-rows=20",
    )


def test_large_classes_are_subsampled_for_the_plan_alone():
    (h_a, y_a), (h_b, y_b) = client(15, counts=(400,)), client(16, counts=(300,), spread=0.4)
    full = ot_cost(h_a, y_a, h_b, y_b).per_class[0]
    few = ot_cost(h_a, y_a, h_b, y_b, max_rows=100)
    assert few == ot_cost(h_a, y_a, h_b, y_b, max_rows=100)
    each = few.per_class[0]
    assert each != ot_cost(h_a, y_a, h_b, y_b, max_rows=100, subsample_seed=1).per_class[0]
    assert few.coverage == (1.0, 1.0)
    assert (each.rows_a, each.rows_b, each.weight) == (400, 300, 120_000)
    assert each.label_cost == full.label_cost
    assert each.feature_cost == pytest.approx(full.feature_cost, abs=0.03)
    assert ot_cost(h_a, y_a, h_a, y_a, max_rows=100).total == pytest.approx(0, abs=1e-12)


def test_the_full_covariance_refuses_few_rows_and_warns_of_its_bias():
    (h_a, y_a), (h_b, y_b) = client(17, counts=(59, 100)), client(18, counts=(100, 100))
    with pytest.raises(
        DataError, match=r"class 0: 59 rows for a covariance of 6 columns, under 60"
    ):
        ot_cost(h_a, y_a, h_b, y_b, variant="full-covariance")
    left_out = ot_cost(h_a, y_a, h_b, y_b, variant="full-covariance", min_rows=60)
    assert list(left_out.per_class) == [1]
    assert "overestimates the label cost" in left_out.warnings[-1]


def test_equal_distributions_differ_more_under_the_full_covariance_than_projected():
    # 20 columns, 200 rows: the literal reading is far from 0 where the projected one is near it.
    (h_a, y_a), (h_b, y_b) = (client(seed, counts=(200,), d=20) for seed in (19, 20))
    literal = ot_cost(h_a, y_a, h_b, y_b, variant="full-covariance").per_class[0].label_cost
    projected = ot_cost(h_a, y_a, h_b, y_b).per_class[0].label_cost
    assert projected < 0.2 < 0.35 < literal


def test_rows_of_zeros_are_equal_and_half_way_from_all_others():
    h = np.random.default_rng(0).normal(size=(20, 3))
    y = np.zeros(20, int)
    dead = np.zeros_like(h)
    assert ot_cost(dead, y, dead, y).total == 0.0
    assert ot_cost(h, y, dead, y).per_class[0].feature_cost == pytest.approx(0.5)


def test_what_cannot_be_compared_is_refused():
    h, y = client(0)
    with pytest.raises(DataError, match="6 and 5 columns"):
        ot_cost(h, y, h[:, :5], y)
    with pytest.raises(ConfigError, match="ot-variant='paperr'; did you mean 'paper'"):
        ot_cost(h, y, h, y, variant="paperr")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cost": 1.1}, r"cost=1.1 of a class is not in \[0, 1\]"),
        ({"feature_cost": float("nan")}, "feature_cost=nan"),
        ({"label_cost": -0.1}, "label_cost=-0.1"),
        ({"weight": 0.0}, "weight=0.0 of a class is not above 0"),
    ],
)
def test_a_class_cost_out_of_range_cannot_exist(change, message):
    fair = {"feature_cost": 0.1, "label_cost": 0.2, "cost": 0.1, "weight": 1.0}
    with pytest.raises(DataError, match=message):
        ClassCost(rows_a=20, rows_b=20, **{**fair, **change})


def test_a_coverage_out_of_range_cannot_exist():
    with pytest.raises(DataError, match="coverage"):
        OtCost({}, (0.5, 1.2), ())


@pytest.mark.parametrize("variant", ["paper", "authors"])
def test_all_pairs_are_the_pairs_one_by_one(variant):
    sites = [
        client(21, counts=(30, 25), d=24),
        client(22, counts=(25, 40), d=24),
        client(23, counts=(0, 22), d=24, world=3),
        client(24, counts=(40, 0), d=24, world=3),
    ]
    costs = pairwise_costs(sites, OtSettings(variant=variant, max_rows=24))
    for i, first in enumerate(sites):
        for j, second in enumerate(sites):
            alone = ot_cost(*first, *second, variant=variant, max_rows=24)
            if i == j:
                assert costs.totals[i, i] == 0.0
            elif alone.total is None:
                assert np.isnan(costs.totals[i, j])
            else:
                assert costs.totals[i, j] == pytest.approx(alone.total, abs=1e-12)
            assert costs.coverage[i, j] == alone.coverage[0]
    assert np.isnan(costs.totals[2, 3])
    assert costs.pairs[0, 1] == ot_cost(*sites[0], *sites[1], variant=variant, max_rows=24)
    assert ((1, 0) in costs.pairs) == (variant == "authors")
    symmetric = np.allclose(costs.totals, costs.totals.T, equal_nan=True)
    assert symmetric == (variant == "paper")


def test_no_client_and_one_client_are_no_trouble():
    assert pairwise_costs([]).totals.shape == (0, 0)
    costs = pairwise_costs([client(0, counts=(30, 10))])
    assert costs.totals.tolist() == [[0.0]]
    assert costs.coverage.tolist() == [[0.75]]


def test_the_guide_shows_what_its_example_prints(capsys):
    guide = (Path(__file__).parents[3] / "docs" / "ot-cost.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    exec(compile(example, "ot-cost.md", "exec"), {})
    assert f"# {capsys.readouterr().out.strip()}" == example.strip().splitlines()[-1]
