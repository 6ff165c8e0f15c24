"""Privacy book of a site: what it has spent, in which unit, and what it may still release.

Pure arithmetic and a text form; where the text is kept is the site's business. A book only grows.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from common.errors import BudgetError, CoterieError, DataError
from common.privacy import accounting
from common.privacy.accounting import Event
from common.privacy.closed_form import check_epsilon_delta

__all__ = ["ADD_OR_REMOVE_PERSON", "ADD_OR_REMOVE_ROW", "COUNTED", "HELD_OUT", "REPLACE_ROW"]
__all__ += ["REPLACE_ROW_IN_CLASS", "SITE", "UNITS", "Budget", "Entry", "PrivacyBook"]

REPLACE_ROW = "replace one row, label included"
REPLACE_ROW_IN_CLASS = "replace one row within its class"
ADD_OR_REMOVE_ROW = "add or remove one row"
ADD_OR_REMOVE_PERSON = "add or remove all rows of one person"
HELD_OUT = "replace one held-out row, or person where rows are of persons"
SITE = "replace all rows of the site"

UNITS = (
    REPLACE_ROW,
    REPLACE_ROW_IN_CLASS,
    ADD_OR_REMOVE_ROW,
    ADD_OR_REMOVE_PERSON,
    HELD_OUT,
    SITE,
)
"""What two data sets may differ in; epsilons of different units mean different things."""

COUNTED: Mapping[str, tuple[str, ...]] = {
    REPLACE_ROW: (REPLACE_ROW, SITE),
    REPLACE_ROW_IN_CLASS: (REPLACE_ROW_IN_CLASS, REPLACE_ROW, SITE),
    ADD_OR_REMOVE_ROW: (ADD_OR_REMOVE_ROW, REPLACE_ROW, SITE),
    ADD_OR_REMOVE_PERSON: (ADD_OR_REMOVE_PERSON, SITE),
    HELD_OUT: (HELD_OUT,),
    SITE: (SITE,),
}
"""Unit -> those whose entries count for it: two data sets that differ in a row differ in no more
than all rows, so what hides all rows tells at most as much of one, and the two tell it together.

Numbers of rows are public, so a row that is removed is one that counts for nothing: noise that
hides which row stands there hides whether it counts. Not the other way round: a row that is
replaced is one removed and another added. A held-out row is in no training."""

_VERSION = 1
_UNREADABLE = (ValueError, LookupError, TypeError, ArithmeticError, RecursionError)
"""What a text that is no book can fail with, of numbers of 400 digits and endless brackets, too."""
_ROUNDING = 1e-9  # what two ways of finding one root may differ by


@dataclass(frozen=True)
class Entry:
    """One release: a mechanism event in its unit, and what it was for."""

    event: Event
    unit: str
    what: str
    """In words, as ``label histogram``."""

    def __post_init__(self) -> None:
        """Refuse a unit that nobody has defined."""
        if self.unit not in UNITS:
            raise DataError(f"unit {self.unit!r} is not one of: {'; '.join(UNITS)}")


@dataclass(frozen=True)
class Budget:
    """The most that a site's releases may amount to, in each unit."""

    epsilon: float = math.inf
    """inf: everything is counted, nothing is refused."""
    delta: float = 1e-5

    def __post_init__(self) -> None:
        """Refuse what is no promise."""
        check_epsilon_delta(min(self.epsilon, 1e6), self.delta)

    @property
    def bounded(self) -> bool:
        """Whether anything can be refused."""
        return math.isfinite(self.epsilon)


@dataclass(frozen=True)
class PrivacyBook:
    """All entries of a site, and its answers, so that a question asked again costs nothing."""

    entries: tuple[Entry, ...] = ()
    answers: Mapping[str, Any] = field(default_factory=dict)
    """Request -> answer as JSON holds it."""

    def spent(self, unit: str, delta: float) -> float:
        """Return what all entries that count for a unit amount to, as an epsilon at ``delta``."""
        counted = COUNTED[unit]
        return accounting.epsilon([e.event for e in self.entries if e.unit in counted], delta)

    def spent_on(self, what: str, delta: float) -> float:
        """Return what all entries of a name amount to, as an epsilon at ``delta``."""
        return accounting.epsilon([e.event for e in self.entries if e.what == what], delta)

    def charged(self, entry: Entry, budget: Budget) -> Self:
        """Return the book with one more entry; :class:`BudgetError` if it would overspend."""
        book = replace(self, entries=(*self.entries, entry))
        if not budget.bounded:
            return book
        for unit in (unit for unit in UNITS if entry.unit in COUNTED[unit]):
            total = book.spent(unit, budget.delta)
            if total > budget.epsilon * (1 + _ROUNDING):
                before = self.spent(unit, budget.delta)
                raise BudgetError(
                    f"{entry.what} would bring this site to epsilon {total:.4g} ({unit}) at "
                    f"delta {budget.delta:g}; {before:.4g} is spent and its privacy-epsilon = "
                    f"{budget.epsilon:g}: ask for more noise, or leave the site out"
                )
        return book

    def answered(self, request: str, answer: Any) -> Self:
        """Return the book with an answer to be given again."""
        return replace(self, answers={**self.answers, request: answer})

    def to_bytes(self) -> bytes:
        """Return the text that :meth:`from_bytes` reads."""
        entries = [
            {"unit": entry.unit, "what": entry.what, **accounting.encode_event(entry.event)}
            for entry in self.entries
        ]
        value = {"version": _VERSION, "entries": entries, "answers": self.answers}
        return (json.dumps(value, indent=1) + "\n").encode()

    @property
    def mark(self) -> bytes:
        """What is kept beside the book: how much stands in it, at least."""
        return json.dumps({"entries": len(self.entries), "answers": len(self.answers)}).encode()

    @classmethod
    def from_bytes(cls, data: bytes | None, mark: bytes | None = None) -> Self:
        """Return the book of a text, an empty one of None.

        Args:
            data: the text.
            mark: of the book as it was last written; None: it never was.

        Raises:
            DataError: a text that cannot be read, or that lacks what the mark says: a site that
                lost count releases nothing.
        """
        book = cls() if data is None else cls._read(data)
        if mark is None:
            return book
        try:
            least = json.loads(mark)
            entries, answers = int(least["entries"]), int(least["answers"])
        except _UNREADABLE as error:
            raise DataError(_lost(f"the mark beside it cannot be read: {error}")) from None
        if len(book.entries) < entries or len(book.answers) < answers:
            raise DataError(
                _lost(
                    f"it has {len(book.entries)} entries and {len(book.answers)} answers, where "
                    f"{entries} and {answers} were written"
                )
            )
        return book

    @classmethod
    def _read(cls, data: bytes) -> Self:
        try:
            value = json.loads(data)
            if value["version"] != _VERSION:
                raise ValueError(f"version {value['version']}, expected {_VERSION}")
            entries, answers = value["entries"], value["answers"]
            if not (isinstance(entries, list) and isinstance(answers, dict)):
                raise ValueError("entries must be a list, answers an object")
            return cls(tuple(map(_entry, entries)), answers)
        except (*_UNREADABLE, CoterieError) as error:
            raise DataError(_lost(str(error))) from None


def _lost(why: str) -> str:
    return (
        f"this site's privacy book cannot be read ({why}); restore it from a copy, for without it "
        "nobody knows what was spent"
    )


def _entry(value: Mapping[str, Any]) -> Entry:
    event = {key: entry for key, entry in value.items() if key not in ("unit", "what")}
    return Entry(accounting.decode_event(event), value["unit"], value["what"])
