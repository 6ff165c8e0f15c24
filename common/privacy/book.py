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

__all__ = ["ADD_OR_REMOVE_ROW", "REPLACE_ROW", "REPLACE_ROW_IN_CLASS", "SITE", "UNITS"]
__all__ += ["Budget", "Entry", "PrivacyBook"]

REPLACE_ROW = "replace one row, label included"
REPLACE_ROW_IN_CLASS = "replace one row within its class"
ADD_OR_REMOVE_ROW = "add or remove one row"
SITE = "replace all rows of the site"

UNITS = (REPLACE_ROW, REPLACE_ROW_IN_CLASS, ADD_OR_REMOVE_ROW, SITE)
"""What two data sets may differ in; epsilons of different units mean different things and are
never added."""

_VERSION = 1
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
    """The most that a site's releases may amount to, in each unit by itself."""

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
        """Return what all entries of a unit amount to, as an epsilon at ``delta``."""
        events = [entry.event for entry in self.entries if entry.unit == unit]
        return accounting.epsilon(events, delta)

    def charged(self, entry: Entry, budget: Budget) -> Self:
        """Return the book with one more entry; :class:`BudgetError` if it would overspend."""
        book = replace(self, entries=(*self.entries, entry))
        total = book.spent(entry.unit, budget.delta)
        if total > budget.epsilon * (1 + _ROUNDING):
            before = self.spent(entry.unit, budget.delta)
            raise BudgetError(
                f"{entry.what} would bring this site to epsilon {total:.4g} ({entry.unit}) at "
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

    @classmethod
    def from_bytes(cls, data: bytes | None) -> Self:
        """Return the book of a text, an empty one of None.

        :class:`DataError` for a text that cannot be read: a site that lost count releases nothing.
        """
        if data is None:
            return cls()
        try:
            value = json.loads(data)
            if value["version"] != _VERSION:
                raise ValueError(f"version {value['version']}, expected {_VERSION}")
            return cls(tuple(map(_entry, value["entries"])), value["answers"])
        except (ValueError, LookupError, TypeError, CoterieError) as error:
            raise DataError(
                f"this site's privacy book cannot be read ({error}); restore it from a copy, for "
                "without it nobody knows what was spent"
            ) from None


def _entry(value: Mapping[str, Any]) -> Entry:
    event = {key: entry for key, entry in value.items() if key not in ("unit", "what")}
    return Entry(accounting.decode_event(event), value["unit"], value["what"])
