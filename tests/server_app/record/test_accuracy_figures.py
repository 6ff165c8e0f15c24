import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from server_app.record.accuracy_figures import rounds_to_sustain, sustained_accuracy

curves = st.lists(st.floats(0, 1), min_size=1, max_size=30)


def test_by_hand():
    curve = [0.1, 0.6, 0.7, 0.2, 0.5, 0.9, 0.8]
    assert sustained_accuracy(curve, 2) == 0.8
    assert sustained_accuracy(curve, 3) == 0.5
    assert rounds_to_sustain(curve, 0.6, 2) == 3
    assert rounds_to_sustain(curve, 0.6, 3) is None
    assert rounds_to_sustain(curve, 0.5, 3) == 7
    assert sustained_accuracy(curve, 8) is None


@given(curve=curves, window=st.integers(1, 10), target=st.floats(0, 1))
def test_a_target_is_sustained_exactly_if_the_best_window_reaches_it(curve, window, target):
    best, rounds = sustained_accuracy(curve, window), rounds_to_sustain(curve, target, window)
    least = target - 1e-9
    assert (rounds is not None) == (best is not None and best >= least)
    if rounds is not None:
        assert min(curve[rounds - window : rounds]) >= least
        earlier = (curve[end - window : end] for end in range(window, rounds))
        assert all(min(part) < least for part in earlier)


@given(
    right=st.lists(st.integers(0, 100), min_size=2, max_size=50),
    more=st.integers(-1, 1),
)
def test_a_target_of_right_rows_is_reached_by_as_many_of_them_however_they_are_summed(right, more):
    """A mean over sites of 100 rows each; one row less is a miss, one more none."""
    shares = np.full(len(right), 1 / len(right))
    mean = float(shares @ [count / 100 for count in right])
    target = (sum(right) - more) / (100 * len(right))
    reached = rounds_to_sustain([mean], target, 1)
    assert (reached is not None) == (more >= 0)


@given(curve=curves)
def test_a_window_of_one_round_is_the_best_round(curve):
    assert sustained_accuracy(curve, 1) == max(curve)
