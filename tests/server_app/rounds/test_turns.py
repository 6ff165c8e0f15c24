"""Turns: counted, made up for absences, and kept by a checkpoint."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import lines, settings_in

from deploy.simulation.grid import simulate
from server_app.record.values import tree_of, value_of
from server_app.rounds.turns import Turns

ALL = np.ones(3, dtype=bool)


def test_turns_are_times_asked_to_train():
    turns = Turns()
    assert turns.seen(ALL).counts.tolist() == [0, 0, 0]
    turns = turns.seen(ALL)
    for clients in ([0, 1], [1]):
        turns = turns.took(np.array(clients))
    assert turns.seen(ALL).counts.tolist() == [1, 2, 0]


def test_who_was_away_or_comes_late_has_nothing_to_catch_up_on():
    turns = Turns()
    turns = turns.seen(np.array([True, True, False]))
    for _ in range(4):
        turns = turns.took(np.array([0, 1]))
    turns = turns.took(np.array([1]))
    # Site 2 comes back and site 3 joins: sites 0 and 1 stayed, with 4 turns at least.
    turns = turns.seen(np.ones(4, dtype=bool))
    assert turns.counts.tolist() == [4, 5, 4, 4]
    turns = turns.took(np.array([2]))
    # Asked again in the same round, as for a second attempt, nothing is made up twice.
    assert turns.seen(np.ones(4, dtype=bool)).counts.tolist() == [4, 5, 5, 4]


def test_who_comes_when_all_others_leave_starts_where_they_were():
    """Else those would be shut out by the bound of a cohort's turns, once they return."""
    turns = Turns()
    first = np.array([True, True, False, False])
    turns = turns.seen(first)
    for _ in range(7):
        turns = turns.took(np.array([0, 1]))
    turns = turns.took(np.array([1]))
    turns = turns.seen(~first)
    assert turns.counts.tolist() == [7, 8, 7, 7]
    turns = turns.took(np.array([2]))
    assert turns.seen(np.ones(4, dtype=bool)).counts.tolist() == [7, 8, 8, 7]


def test_absence_takes_no_turns_away():
    turns = Turns()
    turns = turns.seen(ALL)
    for _ in range(3):
        turns = turns.took(np.array([2]))
    turns = turns.seen(np.array([True, True, False]))
    assert turns.seen(ALL).counts.tolist() == [0, 0, 3]


@given(
    rounds=st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=20),
    cut=st.integers(0, 19),
)
def test_resumed_turns_are_uninterrupted_turns(rounds, cut):
    def play(turns, masks):
        for mask in map(np.array, masks):
            turns = turns.seen(mask)
            turns = turns.took(np.flatnonzero(mask)[:2])
        return turns

    whole = play(Turns(), rounds)
    first = play(Turns(), rounds[:cut])
    second = play(value_of(Turns, tree_of(first)), rounds[cut:])
    everybody = np.ones(4, dtype=bool)
    assert second.seen(everybody).counts.tolist() == whole.seen(everybody).counts.tolist()


@pytest.mark.usefixtures("no_report")
def test_a_run_counts_whom_it_asked(tmp_path):
    """With a spread of one nobody trains twice before all have trained once."""
    words = ("strategy=balanced-cohort", "balance-spread=1", "clients-per-round=2")
    more = ("num-clients=6", "num-server-rounds=3", "dirichlet-alpha=0.1", "workers=1")
    folder = simulate(settings_in(tmp_path, *words, *more))
    trained = [site for line in lines(folder, "rounds.jsonl") for site in line["trained"]]
    assert len(trained) == len(set(trained)) == 6
