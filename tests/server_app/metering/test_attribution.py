import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.power import Reading, own_share
from server_app.metering.attribution import Work, divide

SECONDS = st.floats(0, 1e4)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), SECONDS, SECONDS), min_size=1, max_size=8),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
)
def test_the_parts_add_up_to_the_reading(works, joules, gpu_joules):
    parts = divide(Reading(joules, gpu_joules), [Work(*work) for work in works])
    used_gpu = any(gpu for _, _, gpu in works)
    assert math.fsum(parts.values()) == pytest.approx(joules + gpu_joules * used_gpu)
    assert min(parts.values()) >= 0
    assert parts.keys() == {by for by, *_ in works}


def test_two_workers_and_a_source_of_ten_watts_are_ten_watts():
    ten_seconds = Reading(100.0)
    parts = divide(ten_seconds, [Work("site-1", 10.0), Work("site-2", 10.0)])
    assert parts == {"site-1": 50.0, "site-2": 50.0}


def test_parts_by_hand():
    works = [Work("server", 1.0), Work("a", 2.0, 3.0), Work("b", 4.0, 1.0), Work("a", 1.0)]
    parts = divide(Reading(80.0, 40.0), works)
    assert parts == {"server": 10.0, "a": 20.0 + 30.0 + 10.0, "b": 40.0 + 10.0}


def test_other_programs_joules_are_not_ours():
    # busy for 40 s, of which ours were 10
    parts = divide(Reading(100.0, busy_seconds=40.0), [Work("a", 4.0), Work("b", 6.0)])
    assert parts == pytest.approx({"a": 10.0, "b": 15.0})


def test_a_gpu_that_nobody_used_is_not_billed_and_idleness_falls_to_the_first():
    assert divide(Reading(7.0, 50.0), [Work("a", 1.0)]) == {"a": 7.0}
    assert divide(Reading(7.0), [Work("server", 0.0), Work("a", 0.0)]) == {"server": 7.0, "a": 0.0}
    assert math.isnan(divide(Reading(math.nan), [Work("a", 1.0)])["a"])


@given(st.floats(0, 1e5), st.floats(0, 1e5))
def test_own_share_is_a_share_and_at_most_what_was_used(seconds, busy):
    share = own_share(seconds, busy)
    assert 0 <= share <= 1
    if busy > 0 and seconds < 0.9 * busy:
        assert share == pytest.approx(seconds / busy)
    else:
        assert share == 1


def test_runs_side_by_side_do_not_each_count_the_machine():
    # three programs that each used a third of 30 busy seconds
    assert 3 * own_share(10.0, 30.0) == pytest.approx(1)
    assert own_share(10.0, math.nan) == 1.0
