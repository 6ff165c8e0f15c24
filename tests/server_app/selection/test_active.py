"""Active sampling: its odds, whom it asks, and what it remembers."""

import dataclasses

import numpy as np
import pytest

from server_app.clustering.clusters import Clusters
from server_app.selection.active import Active, ActiveOdds, active_draw
from server_app.selection.rules import View

TIMES = 4000


def shares_drawn(values, m, odds):
    seen = np.zeros(len(values))
    rng = np.random.default_rng(0)
    for _ in range(TIMES):
        drawn = active_draw(np.array(values, dtype=float), m, rng, odds)
        assert len(set(drawn.tolist())) == m
        seen[drawn] += 1
    return seen / TIMES


def test_without_leaving_out_and_steepness_it_is_uniform():
    found = shares_drawn([5, 0, 900, 3, 1], 2, ActiveOdds(left_out=0, steepness=0))
    assert found == pytest.approx(np.full(5, 0.4), abs=0.03)


def test_odds_of_one_draw_are_exponential_among_the_largest_values():
    """Of five sites floor(0.4 · 5) = 2 are left out; of ten cohorts of one, none is uniform."""
    odds = ActiveOdds(left_out=0.4, steepness=0.5, uniform=0.1)
    expected = np.zeros(5)
    expected[[0, 2, 3]] = np.exp(0.5 * np.array([3.0, 6.0, 4.0]))
    found = shares_drawn([3, 1, 6, 4, 2], 1, odds)
    assert found == pytest.approx(expected / expected.sum(), abs=0.03)


def test_the_uniform_part_reaches_those_left_out():
    """Of four members floor(0.5 · 4 + 0.5) = 2 come by value, two from the eight others."""
    odds = ActiveOdds(left_out=0.8, steepness=0.01, uniform=0.5)
    found = shares_drawn([0] * 8 + [9, 9], 4, odds)
    assert found[8:] == pytest.approx([1, 1])
    assert found[:8] == pytest.approx(np.full(8, 0.25), abs=0.03)


def test_equal_values_have_equal_odds_wherever_a_site_stands_in_the_roster():
    found = shares_drawn([3.0] * 8, 2, ActiveOdds())
    assert found == pytest.approx(np.full(8, 0.25), abs=0.03)


def test_odds_are_those_of_the_method():
    assert ActiveOdds() == ActiveOdds(left_out=0.75, steepness=0.01, uniform=0.1)


def test_rule_draws_by_its_values():
    """A quarter of eight is by value, and a cohort of one is no uniform one."""
    rule = Active(1)
    rule.restore({"values": np.array([0, 0, 0, 500.0, 0, 0, 900.0, 0])})
    drawn = [int(rule.ask(view(8), np.random.default_rng(seed))[0]) for seed in range(2000)]
    odds = np.exp(0.01 * np.array([500.0, 900.0]) - 9)
    assert set(drawn) == {3, 6}
    assert drawn.count(3) / 2000 == pytest.approx(odds[0] / odds.sum(), abs=0.01)


def test_who_never_told_counts_as_the_largest_known():
    rule = Active(1)
    rule.restore({"values": np.array([1.0, 1.0, 1.0, 400.0, np.nan])})
    drawn = [int(rule.ask(view(5), np.random.default_rng(seed))[0]) for seed in range(2000)]
    assert set(drawn) == {3, 4}  # three of five are left out
    assert drawn.count(4) / 2000 == pytest.approx(0.5, abs=0.04)


def test_huge_values_overflow_nothing():
    assert len(active_draw(np.array([1e300, 0, 1, 2]), 3, np.random.default_rng(0), ActiveOdds()))


def view(n, number=1, available=None):
    there = np.ones(n, bool) if available is None else available
    return View(number, there, np.arange(1, n + 1) ** 2, Clusters.single(n))


def play(rule, losses, rounds, n=8):
    """Cohorts of some rounds, with the losses that those asked tell."""
    cohorts = []
    for number in rounds:
        rng = np.random.default_rng(number)
        seen = view(n, number)
        asked = rule.ask(seen, rng)
        told = np.full(n, np.nan)
        told[asked] = losses[asked]
        cohort = rule.choose(dataclasses.replace(seen, losses=told), rng)
        assert cohort.clients.tolist() == asked.tolist()  # nobody else is asked
        cohorts.append(cohort.clients.tolist())
    return cohorts


def test_values_are_those_of_the_last_training_and_unknown_ones_count_as_the_largest():
    rule, losses = Active(3), np.linspace(1, 2, 8)
    [first] = play(rule, losses, [1])
    values = rule.state()["values"]
    assert values[first] == pytest.approx((np.array(first) + 1) * losses[first])
    assert np.isnan(np.delete(values, first)).all()
    play(rule, 10 * losses, range(2, 30))
    values = rule.state()["values"]
    assert values == pytest.approx(np.arange(1, 9) * 10 * losses)


def test_site_that_told_nothing_keeps_its_value_and_is_asked_to_train():
    rule = Active(2)
    asked = rule.ask(view(4), np.random.default_rng(0))
    cohort = rule.choose(view(4), np.random.default_rng(0))
    assert cohort.clients.tolist() == asked.tolist()
    assert np.isnan(rule.state()["values"]).all()


def test_resumed_is_uninterrupted():
    losses = np.linspace(3, 1, 8)
    whole, first, second = Active(2), Active(2), Active(2)
    expected = play(whole, losses, range(1, 9))
    play(first, losses, range(1, 5))
    second.restore(first.state())
    assert play(second, losses, range(5, 9)) == expected[4:]
