"""Decoded tables: what a file's columns mean by the federation's schema, a number for each cell.

Columns are found by name, in whatever order. What the schema has no answer for is a problem, and
all of them are found before anybody gives up.
"""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.errors import DataError, quotable
from common.tables import cells
from common.tables.classes import NO_WORDS, YES_WORDS
from common.tables.problems import Problem
from common.tables.reading import RawTable
from common.tables.table_schema import TableColumn, TableSchema

__all__ = [
    "TEST_WORDS",
    "TRAIN_WORDS",
    "DecodedTable",
    "decoded",
    "decoded_column",
    "problems_against",
]

Floats = NDArray[np.float64]

_QUOTED = 5
TRAIN_WORDS = "train", "training", "0"
TEST_WORDS = "test", "testing", "1"


@dataclass(frozen=True, eq=False)
class DecodedTable:
    """Rows as numbers: nothing filled, scaled or spread over several features yet."""

    features: Floats
    """(n, columns) in the schema's order; a category is its place in the schema, NaN is missing."""
    label: Floats | None
    """(n,): the place of each row's class, or its quantity; None where the file has none."""
    time: Floats | None
    """(n,): how long each row was followed, 0 or more; None without a column that says so."""
    weight: Floats | None
    """(n,): how much each row counts in training, 0 or more; None without a column that says so."""
    group: NDArray[np.int64] | None
    """(n,): rows of one number belong together."""
    test: NDArray[np.bool_] | None
    """(n,): which rows are for testing; None where nothing says so."""
    rows: NDArray[np.int64]
    """(n,): which of the rows that were read these are."""


def problems_against(raw: RawTable, schema: TableSchema) -> list[Problem]:
    """Return what a file holds that the schema has no answer for."""
    found: list[Problem] = []
    _decode(raw, schema, found)
    return found


def decoded(raw: RawTable, schema: TableSchema, *, new: bool = False) -> DecodedTable:
    """Return a file's rows by the schema.

    New rows, for which something is to be predicted, have features alone, and none is left out:
    what would cost a row of others its place is refused.

    Raises:
        DataError: a line for each problem.
    """
    found: list[Problem] = []
    table = _decode(raw, schema, found, new=new)
    if found:
        raise DataError("\n".join(map(str, found)))
    if not len(table.rows):
        raise DataError(f"{raw.path}: no row is left: all lack a value that they need")
    return table


def decoded_column(raw: RawTable, wanted: TableColumn) -> Floats:
    """Return one feature's column of new rows as numbers (n,), NaN where one is missing.

    Raises:
        DataError: a line for each problem.
    """
    values, wrong = _numbers(raw.column(wanted.name), _of_new_rows(wanted), is_quantity=False)
    if wrong:
        found = (Problem(str(raw.path), wanted.name, kind, says) for kind, says in wrong)
        raise DataError("\n".join(map(str, found)))
    return values


def _of_new_rows(wanted: TableColumn) -> TableColumn:
    """Return how cells of new rows are read, of which none is left out."""
    return wanted.replace(fill="refuse") if wanted.fill == "drop-row" else wanted


def _decode(
    raw: RawTable, schema: TableSchema, found: list[Problem], *, new: bool = False
) -> DecodedTable:
    file = str(raw.path)
    if raw.ragged and (new or schema.ragged_rows == "refuse"):
        row, count = raw.ragged[0]
        says = (
            f"{len(raw.ragged)} rows have more or fewer cells than the {raw.width} of the "
            f"header; row {row} has {count}; mend them, or set ragged-rows = 'drop' in the schema"
        )
        found.append(Problem(file, None, "ragged", says))
    keep = np.ones(raw.rows, np.bool_)

    def column(wanted: TableColumn) -> Floats | None:
        if wanted.name not in raw.places:
            says = "the schema needs it; add it, or drop it in the schema for all sites"
            found.append(Problem(file, wanted.name, "missing-column", says))
            return None
        asked = _of_new_rows(wanted) if new else wanted
        is_quantity = schema.task == "regression" and wanted.kind == "label"
        values, wrong = _numbers(raw.column(wanted.name), asked, is_quantity=is_quantity)
        found.extend(Problem(file, wanted.name, kind, says) for kind, says in wrong)
        if wanted.fill == "drop-row":
            keep[np.isnan(values)] = False
        return values

    # Column by column in memory, as they come: writing across rows takes several times as long.
    features = np.empty((raw.rows, len(schema.features)), order="F")
    for place, wanted in enumerate(schema.features):
        values = column(wanted)
        features[:, place] = np.nan if values is None else values
    label = None if new else column(schema.label)
    time = None if new or schema.time is None else column(schema.time)
    weight = None if new or schema.weight is None else column(schema.weight)
    for counted, values, what in (
        (schema.time, time, "were followed for less than no time"),
        (schema.weight, weight, "count for less than nothing"),
    ):
        if counted is not None and values is not None and (values < 0).any():
            says = f"{int((values < 0).sum())} rows {what}; mend them"
            found.append(Problem(file, counted.name, "text", says))
    group = None if new or schema.group is None else _groups(raw, schema.group, found)
    test = None if new or not schema.marking else _test_marks(raw, schema.marking[0], found)
    rows = np.flatnonzero(keep)
    return DecodedTable(
        features if keep.all() else features[rows],
        None if label is None else label[rows],
        None if time is None else time[rows],
        None if weight is None else weight[rows],
        None if group is None else group[rows],
        None if test is None else test[rows],
        rows,
    )


def _known(raw: RawTable, wanted: TableColumn, what: str, found: list[Problem]) -> Any:
    """Return the values of a column that no row may lack, as texts; None if it is not there."""
    if wanted.name not in raw.places:
        says = f"the schema needs it: it says {what}"
        found.append(Problem(str(raw.path), wanted.name, "missing-column", says))
        return None
    known = cells.without(cells.values(raw.column(wanted.name)), {"", *wanted.missing})
    if known.null_count:
        says = f"{known.null_count} rows do not say {what}; fill it in, or drop the rows"
        found.append(Problem(str(raw.path), wanted.name, "missing", says))
    return pc.fill_null(known, "")


def _groups(raw: RawTable, wanted: TableColumn, found: list[Problem]) -> NDArray[np.int64] | None:
    known = _known(raw, wanted, "which rows belong together", found)
    return None if known is None else known.dictionary_encode().indices.to_numpy().astype(np.int64)


def _test_marks(
    raw: RawTable, wanted: TableColumn, found: list[Problem]
) -> NDArray[np.bool_] | None:
    known = _known(raw, wanted, "which rows are for testing", found)
    if known is None:
        return None
    wrong: list[tuple[str, str]] = []
    if wanted.test_from:
        days = _dates(raw.column(wanted.name), wanted.date, wrong)
        first = datetime.date.fromisoformat(wanted.test_from) - datetime.date(1970, 1, 1)
        test = days >= first.days
    else:
        words = pc.utf8_lower(known)
        test = _is_in(words, TEST_WORDS)
        other = pa.array(~test & ~_is_in(words, (*TRAIN_WORDS, "")))
        _refuse(pc.filter(known, other), "category", "neither train nor test", wrong)
    found.extend(Problem(str(raw.path), wanted.name, kind, says) for kind, says in wrong)
    return test


def _is_in(words: Any, known: tuple[str, ...]) -> NDArray[np.bool_]:
    there: NDArray[np.bool_] = pc.is_in(words, value_set=pa.array(known, pa.string())).to_numpy(
        zero_copy_only=False
    )
    return there


Wrong = Iterator[tuple[str, str]]


def _numbers(
    column: Any, wanted: TableColumn, *, is_quantity: bool
) -> tuple[Floats, list[tuple[str, str]]]:
    """Return a column's cells as numbers (n,), NaN where missing, and what is wrong with them.

    A label can be a quantity; numbers always are.
    """
    wrong: list[tuple[str, str]] = []
    is_quantity = is_quantity or wanted.kind in ("number", "time", "weight")
    if is_quantity and cells.is_text(column):
        plain = cells.plain_numbers(column)
        marks = [cells.number(mark) for mark in wanted.missing if cells.is_number(mark)]
        if plain is not None and not np.isin(plain, marks).any():
            return _clipped(plain, wanted), wrong
    # An empty cell is a missing value whatever else stands for one.
    column = cells.without(column, {"", *wanted.missing})
    missing = column.null_count
    if wanted.kind == "category" or (wanted.kind == "label" and not is_quantity):
        values = _places(column, wanted, wrong)
    elif wanted.kind == "yes/no":
        values = _answers(column, wrong)
    elif wanted.kind == "date":
        values = _dates(column, wanted.date, wrong)
    else:
        values = _quantities(column, wanted, wrong)
        missing += int(np.isnan(values).sum()) - missing if not cells.is_text(column) else 0
    if missing and wanted.fill == "refuse":
        says = f"{missing} of {len(column)} rows have no value; say in the schema how to fill it"
        wrong.append(("missing", says))
    return values, wrong


def _places(column: Any, wanted: TableColumn, wrong: list[tuple[str, str]]) -> Floats:
    texts = cells.meant(cells.values(column), wanted.same)
    places = pc.index_in(texts, value_set=pa.array(wanted.categories, pa.string()))
    unknown = pc.and_(pc.is_null(places), pc.is_valid(texts))
    _refuse(pc.filter(texts, unknown), "category", "not in the schema's categories", wrong)
    return cells.array_of(pc.cast(places, pa.float64()))


def _answers(column: Any, wrong: list[tuple[str, str]]) -> Floats:
    small = pc.utf8_lower(cells.values(column))
    yes = pc.is_in(small, value_set=pa.array(sorted(YES_WORDS), pa.string()))
    no = pc.is_in(small, value_set=pa.array(sorted(NO_WORDS), pa.string()))
    unknown = pc.and_(pc.invert(pc.or_(yes, no)), pc.is_valid(small))
    _refuse(pc.filter(column, unknown), "category", "neither yes nor no", wrong)
    values = cells.array_of(pc.cast(yes, pa.float64()))
    known = cells.array_of(pc.cast(pc.or_(yes, no), pa.float64())) > 0
    return np.where(known, values, np.nan)


def _dates(column: Any, formats: tuple[str, ...], wrong: list[tuple[str, str]]) -> Floats:
    """Return days since 1970; a file writes all its dates alike, in one of the formats."""
    found = [cells.dates(column, written) for written in formats]
    values = max(found, key=lambda days: int(np.isfinite(days).sum()))
    lost = np.isnan(values) & cells.array_of(pc.cast(pc.is_valid(column), pa.float64())).astype(
        bool
    )
    _refuse(pc.filter(column, pa.array(lost)), "date", f"no date as {' or '.join(formats)}", wrong)
    return values


def _quantities(column: Any, wanted: TableColumn, wrong: list[tuple[str, str]]) -> Floats:
    if cells.is_text(column):
        values = cells.numbers(column)
        if pc.any(pc.match_substring(column, ",")).as_py():
            with_comma = cells.numbers(column, ",")
            # As most are written: the others are the odd cells.
            if np.isnan(with_comma).sum() < np.isnan(values).sum():
                values = with_comma
        lost = pc.and_(pc.is_valid(column), pa.array(np.isnan(values)))
        _refuse(pc.filter(column, lost), "text", "no number", wrong)
    else:
        values = cells.numbers(column)
    infinite = np.isinf(values)
    if infinite.any():
        wrong.append(("infinite", f"{int(infinite.sum())} rows hold an infinite number"))
    return _clipped(values, wanted)


def _clipped(values: Floats, wanted: TableColumn) -> Floats:
    return np.clip(values, wanted.clip_low, wanted.clip_high)


def _refuse(lost: Any, kind: str, why: str, wrong: list[tuple[str, str]]) -> None:
    """Note cells that the schema has no answer for, the first few of them by what they hold."""
    if not len(lost):
        return
    distinct = pc.unique(lost).to_pylist()
    shown = ", ".join(repr(quotable(str(value))) for value in distinct[:_QUOTED])
    more = f" and {len(distinct) - _QUOTED} others" if len(distinct) > _QUOTED else ""
    wrong.append((kind, f"{shown}{more} in {len(lost)} rows: {why}"))
