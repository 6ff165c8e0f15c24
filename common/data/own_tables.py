"""Own tables of a user, read without a schema: numbers, and the column that is to be learned."""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.data.rows import Array, IntArray, Rows
from common.errors import DataError, did_you_mean, quotable
from common.tables import cells
from common.tables.decoding import TEST_WORDS, TRAIN_WORDS
from common.tables.measure import measure_of
from common.tables.profiles import profile
from common.tables.proposing import is_continuous
from common.tables.reading import RawTable, line_of, read_raw
from common.tables.table_schema import MOST_CLASSES, sorted_values
from common.tasks import Classification, Regression, Task

__all__ = ["read_columns", "read_table", "table_has_quantities"]

_ADVICE = "coterie data check FILE tells all that is unusual, and proposes how to read it"


def read_table(
    path: Path,
    label_column: str,
    client_column: str = "",
    group_column: str = "",
    task: str = "classification",
    split_column: str = "",
) -> Rows:
    """Return the rows of a table with a header; all columns but the label's may be empty.

    Every other column is a feature and must hold a number in every row. Labels and clients may be
    whole numbers or texts, numbered in their sorted order. With ``task`` regression the label is a
    number in every row, and its classes are the fifths of the file; with auto, if it has decimals
    or more values than classes could be.

    Raises:
        DataError: a file that is missing, damaged or unfit: what a schema would have to settle.
    """
    raw = _regular(path)
    special = [_named(raw, "label-column", label_column)]
    if client_column:
        special.append(_named(raw, "client-column", client_column))
    if group_column:
        special.append(_named(raw, "group-column", group_column))
    if split_column:
        special.append(_named(raw, "split-column", split_column))
    features = tuple(name for name in raw.names if name not in special)
    if not features:
        raise DataError(f"{path.name}: no feature columns besides {', '.join(raw.names)}")
    owner_names, owner = _values(raw, client_column) if client_column else ((), None)
    _, group = _values(raw, group_column) if group_column else ((), None)
    if task == "regression" or (task == "auto" and _is_continuous(raw, label_column)):
        y: Array = _numbers(raw, (label_column,))[:, 0]
        learnt: Task = Regression(measure_of(y, f"{path.name}: column {label_column!r}"))
        class_names = learnt.class_names
    else:
        learnt = Classification()
        class_names, y = _values(raw, label_column)
        _check_classes(raw, label_column, class_names)
    x = _numbers(raw, features)
    return Rows(
        x,
        y,
        class_names,
        owner,
        owner_names,
        test=_test_marks(raw, split_column) if split_column else None,
        group=group,
        columns=features,
        task=learnt,
    )


def table_has_quantities(path: Path, label_column: str) -> bool:
    """Return whether a table's label has decimals or more numbers than classes could be."""
    raw = read_raw(path)
    return label_column in raw.names and _is_continuous(raw, label_column)


def _is_continuous(raw: RawTable, name: str) -> bool:
    return is_continuous(profile(name, raw.column(name)))


def read_columns(path: Path, columns: tuple[str, ...]) -> tuple[Array, tuple[str, ...]]:
    """Return the numbers (n, columns) of columns of a table, and the names of all others."""
    raw = _regular(path)
    for name in columns:
        _named(raw, "column", name)
    return _numbers(raw, columns), tuple(name for name in raw.names if name not in columns)


def _regular(path: Path) -> RawTable:
    """Return a table whose rows are equally long and whose columns have names of their own."""
    raw = read_raw(path)
    if len(set(raw.names)) < len(raw.names):
        raise DataError(f"{path.name}: the header names a column twice: {', '.join(raw.names)}")
    if raw.ragged:
        row, count = raw.ragged[0]
        line = line_of(path, row)
        raise DataError(f"{path.name}: line {line} has {count} values, the header {len(raw.names)}")
    return raw


def _named(raw: RawTable, setting: str, name: str) -> str:
    if name not in raw.names:
        near = did_you_mean(name, raw.names)
        raise DataError(f"{setting}={name} is no column of {raw.path.name}{near}")
    return name


def _numbers(raw: RawTable, names: tuple[str, ...]) -> NDArray[np.float64]:
    """Return the numbers (n, names) of some columns."""
    x = np.empty((raw.rows, len(names)))
    for place, name in enumerate(names):
        x[:, place] = cells.numbers(raw.column(name))
        wrong = ~np.isfinite(x[:, place])
        if wrong.any():
            raise _refused(raw, name, int(wrong.argmax()), "not a number")
    return x


def _refused(raw: RawTable, name: str, row: int, what: str) -> DataError:
    """Return the error for a cell: its column, line and text."""
    value = raw.column(name)[row].as_py()
    cell = "" if value is None else quotable(str(value))
    line = line_of(raw.path, row + 2)
    return DataError(
        f"{raw.path.name}: column {name!r} holds {cell!r} on line {line}, {what}; fill it in, or "
        f"drop the line or the column; {_ADVICE}"
    )


def _values(raw: RawTable, name: str) -> tuple[tuple[str, ...], IntArray]:
    """Return the sorted values of a column, and each row's number among them."""
    column = cells.values(raw.column(name))
    missing = pc.fill_null(cells.is_missing(column), True).to_numpy(zero_copy_only=False)
    if missing.any():
        raise _refused(raw, name, int(missing.argmax()), "a missing value")
    encoded = column.dictionary_encode()
    found = encoded.dictionary.to_pylist()
    names = sorted_values(found)
    place = {value: number for number, value in enumerate(names)}
    numbers = np.array([place[value] for value in found], np.int64)
    return names, numbers[encoded.indices.to_numpy()]


def _test_marks(raw: RawTable, name: str) -> NDArray[np.bool_]:
    """Return which rows a column says are for testing; both parts must have some."""
    words = [value.lower() for value in cells.values(raw.column(name)).to_pylist()]
    test = np.isin(words, TEST_WORDS)
    wrong = ~test & ~np.isin(words, TRAIN_WORDS)
    if wrong.any():
        raise _refused(raw, name, int(wrong.argmax()), "neither train nor test")
    if test.all() or not test.any():
        part = "training" if test.all() else "testing"
        raise DataError(f"{raw.path.name}: column {name!r} says of no row that it is for {part}")
    return test


def _check_classes(raw: RawTable, label: str, classes: tuple[str, ...]) -> None:
    if len(classes) <= MOST_CLASSES:
        return
    raise DataError(
        f"{raw.path.name}: column {label!r} holds {len(classes)} values ({', '.join(classes[:3])}, "
        f"...); more than {MOST_CLASSES} are no classes: name another label-column, or join classes"
        f" in the file; {_ADVICE}"
    )
