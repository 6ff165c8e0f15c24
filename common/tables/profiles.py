"""Column profiles: what the cells of one column are like, told from all of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.tables import cells
from common.tables.classes import NO_WORDS, YES_NO, YES_WORDS
from common.tables.id_names import Named, is_index_name, named
from common.tables.measure import fifths
from common.tables.table_schema import MOST_CLASSES

__all__ = ["ColumnProfile", "profile"]

_NUMERIC_SHARE = 0.9  # of the cells, from which on a column is one of numbers with slips
_DATE_SHARE = 0.9
_MOST_SPELLINGS = 4  # of one value, as 1, 01, 1.0
_LEAST_IDS = 10  # fewer values may all differ by chance
_MOST_ROWS_OF_A_CASE = 20  # a stay, a sample; more are of a ward or a kind of sample
_OF_AN_INDEX = re.compile(r"index|level_\d+")
_MOST_JOINED = 10  # files that were joined, each with its own row numbers


@dataclass(frozen=True)
class ColumnProfile:
    """What one column of one file holds."""

    name: str
    rows: int
    missing: Mapping[str, int] = field(default_factory=dict)
    """What stands for a missing value, and in how many rows."""
    numbers: int = 0
    """Rows with a number, an infinite one included."""
    infinite: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[str, int] = field(default_factory=dict)
    """In a column of numbers, what is none."""
    decimal: str = "."
    values: Mapping[str, int] = field(default_factory=dict)
    """Its values and in how many rows each is, where they are at most `MOST_CLASSES`."""
    same: Mapping[str, str] = field(default_factory=dict)
    """What is a value but for upper and lower case, and the value as most rows have it."""
    distinct: int = 0
    """How many values differ; 0 where numbers with decimals were not counted."""
    low: float = float("nan")
    high: float = float("nan")
    fifths: tuple[float, ...] = ()
    """Of a label: what cuts its numbers into fifths, where they are more than classes could be."""
    has_words: bool = False
    """Whether most of its cells hold several words."""
    date: str = ""
    """How its dates are written; empty where they are none."""

    @property
    def known(self) -> int:
        """Rows with a value."""
        return self.rows - sum(self.missing.values())

    @property
    def is_numeric(self) -> bool:
        """Whether it is a column of numbers, up to slips."""
        return self.known > 0 and self.numbers >= _NUMERIC_SHARE * self.known

    @property
    def is_constant(self) -> bool:
        """Whether all rows that know it hold one value."""
        return self.distinct == 1 or (self.is_numeric and not self.others and self.low == self.high)

    @property
    def is_yes_no(self) -> bool:
        """Whether its two values say yes and no."""
        found = {value.casefold() for value in self.values}
        return len(found) == 2 and any(found == {no, yes} for no, yes in YES_NO)

    @property
    def named(self) -> Named:
        """What its name says of its being an id."""
        return named(self.name)

    @property
    def is_named_id(self) -> bool:
        """Whether its name is one of an id, or of an index that had none."""
        return bool(self.named) or is_index_name(self.name)

    @property
    def is_index(self) -> bool:
        """Whether it numbers rows, by the name of such a column or as its cells do."""
        if is_index_name(self.name):
            return True
        if _OF_AN_INDEX.fullmatch(self.name.lower()):  # of files that were joined it begins anew
            return self.counts and self.distinct * _MOST_JOINED >= self.known
        return self.counts and self.all_differ

    @property
    def counts(self) -> bool:
        """Whether its values are the whole numbers from 0 or 1 on, without a gap."""
        return self.low in (0, 1) and self.high - self.low + 1 == self.distinct

    @property
    def is_id(self) -> bool:
        """Whether its values tell cases apart by its name, and are as those of such a name.

        A number that repeats is no id by its name alone, unless that says whose it is.
        """
        if self.distinct == 0 or self.is_yes_no or set(self.values) == {"0", "1"}:
            return False
        if self.named >= Named.CASE and self.distinct >= self.known:
            return True
        of_case = self.named == Named.CASE and self.distinct * _MOST_ROWS_OF_A_CASE >= self.known
        return of_case or self.named == Named.PERSON

    @property
    def all_differ(self) -> bool:
        """Whether no value stands in two rows, of more than could differ by chance."""
        return self.distinct == self.known >= _LEAST_IDS


def profile(name: str, column: Any, *, is_label: bool = False) -> ColumnProfile:
    """Return what a column is like: texts as :mod:`common.tables.reading` has them, or typed.

    Of a label it is told, too, what cuts its numbers into fifths.
    """
    found = _profile(name, column)
    if not (is_label and found.is_numeric and not found.values):
        return found
    known = cells.numbers(cells.without(column, found.missing), found.decimal)
    return replace(found, fifths=fifths(known[np.isfinite(known)]))


def _profile(name: str, column: Any) -> ColumnProfile:
    if not cells.is_text(column):
        return _of_typed(name, column)
    found = cells.plain_numbers(column)
    if found is not None:
        return _of_numbers(name, len(column), {}, found)
    missing = _counts(pc.filter(column, cells.is_missing(column)))
    known = pc.drop_null(cells.without(column, missing))
    if not len(known):
        return ColumnProfile(name, len(column), missing)
    return _of_texts(name, len(column), missing, known)


def _of_typed(name: str, column: Any) -> ColumnProfile:
    known = pc.drop_null(column)
    missing = {"": column.null_count} if column.null_count else {}
    if cells.is_temporal(column):
        distinct = pc.count_distinct(known).as_py()
        return ColumnProfile(name, len(column), missing, distinct=distinct, date="%Y-%m-%d")
    return _of_numbers(name, len(column), missing, cells.numbers(known))


def _of_texts(name: str, rows: int, missing: Mapping[str, int], known: Any) -> ColumnProfile:
    decimal = "."
    numeric = cells.number_cells(known)
    share = pc.sum(numeric).as_py()
    if share < len(known) and pc.any(pc.match_substring(known, ",")).as_py():
        with_comma = cells.number_cells(known, ",")
        if pc.sum(with_comma).as_py() > share:
            decimal, numeric, share = ",", with_comma, pc.sum(with_comma).as_py()
    if share >= _NUMERIC_SHARE * len(known):
        others = _counts(pc.filter(known, pc.invert(numeric)))
        found = pc.filter(known, numeric)
        infinite = _counts(pc.filter(found, pc.match_substring_regex(found, "(?i)inf")))
        numbers = cells.numbers(found, decimal)
        return _of_numbers(name, rows, missing, numbers, infinite, others, decimal)
    distinct = pc.count_distinct(known).as_py()
    values: dict[str, int] = {}
    same: dict[str, str] = {}
    if distinct <= _MOST_SPELLINGS * MOST_CLASSES:
        values, same = _by_case(_counts(cells.values(known)))
        distinct = len(values)
    if distinct > MOST_CLASSES:
        values, same = {}, {}
    words = pc.mean(pc.match_substring(known, " ")).as_py() > 1 / 2
    return ColumnProfile(
        name,
        rows,
        missing,
        share,
        values=values,
        same=same,
        distinct=distinct,
        has_words=words,
        date=_date_format(known),
    )


def _of_numbers(
    name: str,
    rows: int,
    missing: Mapping[str, int],
    found: NDArray[np.float64],
    infinite: Mapping[str, int] | None = None,
    others: Mapping[str, int] | None = None,
    decimal: str = ".",
) -> ColumnProfile:
    """Return the profile of numbers (n,), infinite ones among them."""
    nan = np.isnan(found)
    if nan.any():  # only a parquet file has them: everywhere else they are marks
        missing = {**missing, "": missing.get("", 0) + int(nan.sum())}
        found = found[~nan]
    finite = found[np.isfinite(found)]
    values: dict[str, int] = {}
    distinct = 0
    if len(finite) and (finite == np.trunc(finite)).all():
        numbers, counts = np.unique(finite, return_counts=True)
        distinct = len(numbers)
        if distinct <= MOST_CLASSES:
            values = {str(int(n)): int(c) for n, c in zip(numbers, counts, strict=True)}
    return ColumnProfile(
        name,
        rows,
        missing,
        len(found),
        infinite or _infinite(found),
        others or {},
        decimal,
        values,
        {},
        distinct,
        float(finite.min()) if len(finite) else float("nan"),
        float(finite.max()) if len(finite) else float("nan"),
    )


def _infinite(found: NDArray[np.float64]) -> dict[str, int]:
    count = int(np.isinf(found).sum())
    return {"inf": count} if count else {}


def _date_format(known: Any) -> str:
    """Return how nearly all cells are written as dates, or nothing."""
    if not pc.any(pc.match_substring_regex(known.slice(0, 100), r"^\d+[-./]\d+[-./]\d+")).as_py():
        return ""
    shares = {
        written: np.isfinite(cells.dates(known, written)).mean() for written in cells.DATE_FORMATS
    }
    best = max(shares, key=lambda written: shares[written])
    return best if shares[best] >= _DATE_SHARE else ""


def _by_case(counts: Mapping[str, int]) -> tuple[dict[str, int], dict[str, str]]:
    """Return values that differ by more than case, in how many rows, and how else they are written.

    Single letters stay apart, as those of antigens do, unless they answer yes or no.

    >>> _by_case({"Yes": 1, "YES": 1, "no": 9, "yes": 3, "K": 2, "k": 2})
    ({'K': 2, 'k': 2, 'no': 9, 'yes': 5}, {'YES': 'yes', 'Yes': 'yes'})
    """
    alike: dict[str, list[str]] = {}
    for value in sorted(counts):
        small = value.casefold()
        is_letter = len(value) == 1 and small not in NO_WORDS | YES_WORDS
        alike.setdefault(value if is_letter else small, []).append(value)
    values: dict[str, int] = {}
    same: dict[str, str] = {}
    for written in alike.values():
        usual = max(written, key=lambda value: counts[value])
        values[usual] = sum(counts[value] for value in written)
        same |= {value: usual for value in written if value != usual}
    return dict(sorted(values.items())), dict(sorted(same.items()))


def _counts(column: Any) -> dict[str, int]:
    """Return how often each text stands in a column, in the texts' order."""
    counted = pc.value_counts(column).to_pylist()
    return dict(sorted((entry["values"], entry["counts"]) for entry in counted))
