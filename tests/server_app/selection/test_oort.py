"""Oort: its utilities by hand, whom it explores, how its pacer grows, and what it remembers."""

import dataclasses
import math

import numpy as np
import pytest

from server_app.clustering.clusters import Clusters
from server_app.selection.oort import Oort, explored_share, utilities
from server_app.selection.rules import View


def test_utilities_by_hand():
    """Round 9; the largest of three is cut to the 95 % quantile, 2 + 0.9 · 6; the last is slow."""
    found = utilities(
        np.array([1.0, 2.0, 8.0]), np.array([1, 4, 9]), 9, np.array([1.0, 2.0, 4.0]), wanted=2.0
    )
    stale = [math.sqrt(0.1 * math.log(9) / last) for last in (1, 4, 9)]
    assert found == pytest.approx([1 + stale[0], 2 + stale[1], (7.4 + stale[2]) / 4])


def view(n, number, available=None, seconds=None):
    return View(
        number,
        np.ones(n, bool) if available is None else available,
        np.full(n, 100),
        Clusters.single(n),
        upload_seconds=np.ones(n) if seconds is None else seconds,
    )


def test_fit_is_rows_times_the_root_mean_square_and_the_round_it_was_told_in():
    rule, shown = Oort(2, 1e-3), view(3, 7)
    told = np.isin(np.arange(3), rule.ask(shown, np.random.default_rng(0)))
    shown = dataclasses.replace(
        shown, losses=np.where(told, 0.5, np.nan), rms_losses=np.where(told, 2.0, np.nan)
    )
    rule.choose(shown, np.random.default_rng(0))
    state = rule.state()
    assert state["fits"][told].tolist() == [200.0, 200.0]  # 100 rows
    assert state["trained"].tolist() == np.where(told, 7, 0).tolist()


def test_pacer_adds_up_utilities():
    """The slow count less and the outlier is cut, as where they are drawn."""
    fits, seconds = np.array([1.0, 2.0, 9.0]), np.array([1.0, 1.0, 30.0])
    rule = Oort(3, 1e-9)
    play(rule, lambda number: fits, [1, 2], seconds=seconds)
    expected = utilities(100 * fits, np.full(3, 2), 2, 2 * seconds + 1e-7, wanted(rule))
    assert rule.state()["gains"][1] == pytest.approx(expected.sum())
    assert expected.sum() < 100 * fits.sum() / 2


def test_drawn_are_those_near_the_last_that_would_be_taken():
    """Of 100, 97 and 90, one wanted: from 95 % of the best on, by utility."""
    rule = Oort(1, 1e-9)
    rule.restore(
        {
            "fits": np.array([100.0, 97.0, 90.0]),
            "trained": np.array([1, 1, 1]),
            "gain-rounds": np.empty(0, np.int64),
            "gains": np.empty(0),
            "pacer": np.array([10.0, 1.0]),
        }
    )
    drawn = [int(rule.ask(view(3, 1), np.random.default_rng(seed))[0]) for seed in range(3000)]
    clipped = np.quantile([100, 97, 90], 0.95)
    assert set(drawn) == {0, 1}
    assert drawn.count(0) / 3000 == pytest.approx(clipped / (clipped + 97), abs=0.03)


def play(rule, fits, rounds, **seen):
    """Cohorts of some rounds, whose members tell ``fits(round)`` (n,) as root mean squares."""
    cohorts = []
    for number in rounds:
        rng, told = np.random.default_rng(number), fits(number)
        shown = view(len(told), number, **seen)
        asked = rule.ask(shown, rng)
        known = np.full(len(told), np.nan)
        known[asked] = told[asked]
        cohort = rule.choose(dataclasses.replace(shown, losses=known, rms_losses=known), rng)
        assert cohort.clients.tolist() == asked.tolist()  # nobody else is asked
        cohorts.append(cohort.clients.tolist())
    return cohorts


def test_first_those_never_tried_are_explored_until_all_were():
    cohorts = play(Oort(5, 1e-3), lambda number: np.ones(20), range(1, 12))
    assert len({client for cohort in cohorts[:6] for client in cohort}) == 20
    fresh, seen = [], set()
    for number, cohort in enumerate(cohorts, start=1):
        new = set(cohort) - seen
        seen |= new
        fresh.append(len(new))
        expected = 5 if number == 1 else round(explored_share(number) * 5)
        assert len(new) == min(expected, 20 - len(seen) + len(new))


def test_quick_ones_are_explored_sooner():
    seconds = np.array([0.5] * 10 + [5.0] * 10)
    times = np.zeros(20)
    for seed in range(300):
        times[Oort(1, 1e-9).ask(view(20, 1, seconds=seconds), np.random.default_rng(seed))] += 1
    assert times[:10].sum() / times.sum() == pytest.approx(10 / 11, abs=0.05)


def test_once_all_were_tried_the_badly_fitted_are_preferred_and_the_slow_are_not():
    fits = np.array([1.0] * 6 + [9.0] * 6)
    seconds = np.array([1.0] * 9 + [30.0] * 3)  # three of the badly fitted are far too slow
    cohorts = play(Oort(3, 1e-9), lambda number: fits, range(1, 60), seconds=seconds)
    late = [client for cohort in cohorts[10:] for client in cohort]
    assert set(late) <= {6, 7, 8}


def wanted(rule):
    return rule.state()["pacer"][0]


def test_pacer_grows_where_twenty_rounds_gained_less_than_those_before():
    falling, rising = Oort(2, 1e-3), Oort(2, 1e-3)
    play(falling, lambda number: np.full(4, 1 / number), range(1, 41))
    assert wanted(falling) == pytest.approx(2.1)  # 100 rows, and a model down and up
    play(falling, lambda number: np.full(4, 1 / number), range(41, 61))
    assert wanted(falling) == pytest.approx(2.1 + 0.21)
    play(falling, lambda number: np.full(4, 1 / number), range(61, 82))
    assert wanted(falling) == pytest.approx(2.1 + 3 * 0.21)
    play(rising, lambda number: np.full(4, float(number)), range(1, 90))
    assert wanted(rising) == pytest.approx(2.1)


def test_retried_round_moves_the_pacer_once():
    rule = Oort(2, 1e-3)
    play(rule, lambda number: np.full(4, 1 / number), [*range(1, 42), 41, 41])
    assert wanted(rule) == pytest.approx(2.1 + 0.21)


def test_everybody_explored_may_be_wanted_and_fewer_may_be_there():
    """Codes elsewhere fail where all that were tried are wanted."""
    there = np.array([True, True, True, False, False])
    cohorts = play(Oort(4, 1e-3), lambda number: np.ones(5), range(1, 8), available=there)
    assert all(cohort == [0, 1, 2] for cohort in cohorts)
    cohorts = play(Oort(5, 1e-3), lambda number: np.zeros(5), range(1, 8))
    assert all(cohort == [0, 1, 2, 3, 4] for cohort in cohorts)


def test_resumed_is_uninterrupted():
    def fits(number):
        return np.linspace(1, 3, 9) / number

    whole, first, second = Oort(3, 1e-3), Oort(3, 1e-3), Oort(3, 1e-3)
    expected = play(whole, fits, range(1, 70))
    play(first, fits, range(1, 45))
    second.restore(first.state())
    assert play(second, fits, range(45, 70)) == expected[44:]
    assert wanted(second) == wanted(whole)
