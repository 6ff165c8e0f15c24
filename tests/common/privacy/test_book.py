"""No order of requests overspends a budget, and units are never added."""

import math

import privacy_losses
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from common.errors import BudgetError, DataError
from common.privacy.accounting import (
    ContinuousGaussian,
    DiscreteGaussian,
    RandomisedResponse,
)
from common.privacy.book import (
    REPLACE_ROW,
    REPLACE_ROW_IN_CLASS,
    SITE,
    UNITS,
    Budget,
    Entry,
    PrivacyBook,
)
from common.privacy.closed_form import discrete_gaussian_sigma

BUDGET = Budget(4.0, 1e-5)
MECHANISMS = st.one_of(
    st.builds(ContinuousGaussian, st.sampled_from([0.05, 0.2, 0.7])),
    st.builds(DiscreteGaussian, st.sampled_from([1.6, 2.82, 5.276]), st.just(2)),
    st.builds(RandomisedResponse, st.sampled_from([0.1, 0.5, 2.0]), st.just(10)),
)


class Site(RuleBasedStateMachine):
    """Releases in any order, some refused, with restarts in between."""

    def __init__(self):
        super().__init__()
        self.book = PrivacyBook()
        self.released = {unit: [] for unit in UNITS}

    @rule(event=MECHANISMS, unit=st.sampled_from(UNITS))
    def release(self, event, unit):
        before = self.book
        try:
            self.book = self.book.charged(Entry(event, unit, "something"), BUDGET)
            self.released[unit].append(event)
        except BudgetError:
            assert self.book is before
            # It is refused for a reason: the same events do overspend.
            _, most = privacy_losses.bounds([*self.released[unit], event], BUDGET.delta)
            assert most > BUDGET.epsilon

    @rule()
    def restart(self):
        self.book = PrivacyBook.from_bytes(self.book.to_bytes())

    @invariant()
    def nothing_is_overspent(self):
        for unit in UNITS:
            assert self.book.spent(unit, BUDGET.delta) <= BUDGET.epsilon * (1 + 1e-9)

    def teardown(self):
        for unit in UNITS:
            if self.released[unit]:
                least, _ = privacy_losses.bounds(self.released[unit], BUDGET.delta)
                assert least <= BUDGET.epsilon


TestSite = Site.TestCase
TestSite.settings = settings(max_examples=10, stateful_step_count=10, deadline=None)


def test_units_are_not_added():
    entry = ContinuousGaussian(0.7)
    book = PrivacyBook()
    for unit in UNITS:
        book = book.charged(Entry(entry, unit, "x"), BUDGET)
    spent = {book.spent(unit, 1e-5) for unit in UNITS}
    assert len(spent) == 1
    with pytest.raises(DataError, match="unit 'rows'"):
        Entry(entry, "rows", "x")


def test_refusal_names_what_is_spent_and_what_is_allowed():
    sigma = discrete_gaussian_sigma(3, 1e-5, 2)
    entry = Entry(DiscreteGaussian(sigma, 2), REPLACE_ROW, "label histogram")
    book = PrivacyBook().charged(entry, BUDGET)
    with pytest.raises(
        BudgetError, match=r"label histogram .* epsilon 4\.\d+ .*privacy-epsilon = 4"
    ):
        book.charged(entry, BUDGET)
    assert book.charged(entry, Budget(math.inf, 1e-5)).spent(REPLACE_ROW, 1e-5) > 4


def test_whole_budget_can_be_spent_at_once():
    for epsilon in (0.5, 1, 2, 4, 8):
        sigma = discrete_gaussian_sigma(epsilon, 1e-5, 2)
        entry = Entry(DiscreteGaussian(sigma, 2), REPLACE_ROW, "label histogram")
        book = PrivacyBook().charged(entry, Budget(epsilon, 1e-5))
        assert 0.98 * epsilon < book.spent(REPLACE_ROW, 1e-5) <= epsilon * (1 + 1e-9)
        with pytest.raises(BudgetError):
            PrivacyBook().charged(entry, Budget(0.98 * epsilon, 1e-5))


def test_answers_and_entries_survive_a_restart():
    entry = Entry(ContinuousGaussian(0.5), REPLACE_ROW_IN_CLASS, "class statistics")
    book = PrivacyBook().charged(entry, BUDGET).answered("question", [1.5, -2.0])
    again = PrivacyBook.from_bytes(book.to_bytes())
    assert again == book
    assert again.spent(SITE, 1e-5) == 0


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"version": 1}',
        b'{"version": 2, "entries": [], "answers": {}}',
        b'{"version":1,"answers":{},"entries":[{"kind":"gaussian","mu":-1,"unit":"x","what":"y"}]}',
    ],
)
def test_a_book_that_cannot_be_read_releases_nothing(text):
    with pytest.raises(DataError, match="privacy book cannot be read"):
        PrivacyBook.from_bytes(text)
