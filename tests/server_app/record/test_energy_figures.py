import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_app.record.energy_figures import (
    COUNTED,
    PHASES,
    Curve,
    costs_by_site,
    joules_by_phase,
    sources_by_phase,
    times_trained,
)
from server_app.record.format import ClientLine, RoundLine


def line(number, accuracy, joules=None, **more):
    values = {"round": number, "attempt": 1, "score": accuracy, "joules": joules, **more}
    return RoundLine.from_json(values)


def spending(pre, train, comm, evaluate):
    return dict(zip(PHASES, (pre, train, comm, evaluate), strict=True))


LINES = [
    line(1, 0.2, spending(5.0, 10.0, 1.0, 3.0)),
    line(2, 0.9, spending(0.0, 10.0, 1.0, 3.0)),
    line(3, None, spending(0.0, 4.0, 0.5, 0.0)),
    line(3, 0.7, spending(0.0, 10.0, 1.0, 3.0), attempt=2),
    line(4, 0.8, spending(0.0, 10.0, 1.0, 3.0)),
    line(5, 0.9, spending(0.0, 10.0, 1.0, 3.0)),
    line(6, 0.8, spending(0.0, 10.0, 1.0, 3.0)),
]


def test_curve_by_hand():
    curve = Curve.of(LINES)
    assert curve.rounds.tolist() == [1, 2, 3, 4, 5, 6]
    assert curve.values.tolist() == [0.2, 0.9, 0.7, 0.8, 0.9, 0.8]
    # evaluation is not counted; the failed attempt at round 3 is
    assert curve.joules.tolist() == [16.0, 27.0, 42.5, 53.5, 64.5, 75.5]
    assert Curve.of(LINES, ("comm",)).joules.tolist() == [1.0, 2.0, 3.5, 4.5, 5.5, 6.5]


def test_target_is_reached_at_the_end_of_the_first_window_that_holds_it():
    reached = Curve.of(LINES).reached(0.8, window=3)
    assert (reached.first, reached.last, reached.joules) == (4, 6, 75.5)
    single = Curve.of(LINES).reached(0.8, window=1)
    assert (single.first, single.last, single.joules) == (2, 2, 27.0)
    assert Curve.of(LINES).reached(0.8, window=4) is None
    assert Curve.of(LINES).reached(0.95, window=1) is None


def test_best_accuracy_within_budgets_by_hand():
    curve = Curve.of(LINES)
    assert curve.best_sustained(3) == 0.8
    assert curve.best_sustained(3, budget=75.4) == 0.7
    assert curve.best_sustained(3, budget=42.5) == 0.2
    assert curve.best_sustained(3, budget=42.4) is None
    assert curve.best_sustained(1, budget=27.0) == 0.9


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 100)), min_size=1, max_size=15),
    st.integers(1, 5),
    st.floats(0, 1),
    st.floats(0, 800),
)
def test_windows_agree_with_trying_all(rounds, window, target, budget):
    curve = Curve.of(line(n, a, spending(0, e, 0, 1)) for n, (a, e) in enumerate(rounds, start=1))
    ends = range(window, len(rounds) + 1)
    held = {end: min(a for a, _ in rounds[end - window : end]) for end in ends}
    spent = np.cumsum([e for _, e in rounds])
    first = min((end for end in ends if held[end] >= target - 1e-9), default=None)
    reached = curve.reached(target, window)
    assert (reached.last if reached else None) == first
    if reached:
        assert reached.joules == pytest.approx(spent[first - 1])
        assert reached.last - reached.first == window - 1
    within = [held[end] for end in ends if curve.joules[end - 1] <= budget]
    assert curve.best_sustained(window, budget) == max(within, default=None)


def test_what_was_not_metered_is_not_a_number_and_never_nothing():
    unmetered = [line(1, 0.5, {"comm": 1.0}), line(2, 0.6, {"comm": 1.0})]
    curve = Curve.of(unmetered)
    assert np.isnan(curve.joules).all()
    assert math.isnan(curve.reached(0.5, 2).joules)
    assert curve.best_sustained(1) == 0.6
    assert curve.best_sustained(1, budget=1e9) is None
    assert joules_by_phase(unmetered)["comm"] == 2.0
    assert all(math.isnan(joules_by_phase(unmetered)[phase]) for phase in ("pre", "train"))
    # lines of a run before there was metering
    assert np.isnan(Curve.of([RoundLine(round=1, score=0.5)]).joules).all()


def test_phases_add_up_over_all_attempts():
    totals = joules_by_phase(LINES)
    assert totals == {"pre": 5.0, "train": 64.0, "comm": 6.5, "evaluate": 18.0}
    assert sum(totals[phase] for phase in COUNTED) == Curve.of(LINES).joules[-1]


def test_rounds_must_follow_each_other():
    with pytest.raises(ValueError, match="missing"):
        Curve.of([line(1, 0.5), line(3, 0.5)])
    with pytest.raises(ValueError, match="one of each"):
        Curve(np.array([1]), np.array([0.5]), np.array([1.0, 2.0]))


def test_sites_are_counted_in_rounds_with_a_result():
    lines = [
        line(1, None, trained=["a", "b"]),
        line(1, 0.5, trained=["a"]),
        line(2, 0.5, trained=["a", "c"]),
    ]
    assert times_trained(lines, ["a", "b"]) == {"a": 2, "b": 0, "c": 1}


def test_sources_are_all_that_any_line_names():
    lines = [
        line(1, 0.5, joules_source={"train": "measured", "comm": "estimated"}),
        line(
            2,
            0.5,
            joules_source={"train": "attributed, measured", "comm": "estimated", "pre": None},
        ),
        line(3, 0.5),
    ]
    assert sources_by_phase(lines) == {
        "pre": None,
        "train": "attributed, measured",
        "comm": "estimated",
        "evaluate": None,
    }


def test_sites_costs_add_up_and_what_is_never_known_stays_unknown():
    lines = [
        {"round": 1, "site": "a", "joules": 2.0, "bytes_up": 5},
        {"round": 1, "site": "b", "joules": None, "bytes_up": 1},
        {"round": 2, "site": "a", "joules": None, "bytes_up": 5, "radio_joules": 0.5},
    ]
    costs = costs_by_site(map(ClientLine.from_json, lines))
    assert costs["a"].joules == 2.0
    assert (costs["a"].bytes_up, costs["a"].radio_joules) == (10, 0.5)
    assert costs["b"].joules is costs["b"].radio_seconds is None
