"""Fuzzing of tables: made ones whose truth is known, read by the schema that a check proposes.

    python -m benchmarks.table_fuzz --number 10000 --seed 0

Every table is drawn from its own seed: what separates its cells, its encoding, decimal mark, mark
of thousands, missing marks, and columns of quantities, counts, dates in some order, ids, codes and
words; some are parquet files. It is checked, read by the proposal, and its first row is read once
more as one to predict for. A column is **read** where its numbers are the truth, **said** where the
check has a line on why it is left out, what must be said before it is read, or that its few numbers
are categories as they are written, and **wrong** else.
pandas, told how each is written, reads the same cells. Exit code 1 if any is wrong.
"""

import argparse
import datetime
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from common.errors import ConfigError, DataError
from common.tables.cells import is_number
from common.tables.checking import Checked, check_files
from common.tables.decoding import decoded
from common.tables.fitting import FittedTable
from common.tables.reading import RawTable, read_raw
from common.tables.table_schema import TableColumn

__all__ = ["Drawn", "drawn", "outcomes"]

_DAY_FORMATS = (
    *("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%d %b %Y", "%B %d, %Y"),
    *("%d/%m/%Y %H:%M", "%Y-%m-%dT%H:%M:%S", "%d.%m.%y", "%m/%d/%Y %I:%M %p"),
)
_MARKS = ("", "NA", "?", "-", "n/a", "NULL")
_WORDS = ("unknown", "None", "#VALUE!", "not done")
_SPACES = (" ", "\N{NO-BREAK SPACE}", "\N{NARROW NO-BREAK SPACE}", "'")
_WARDS = ("Chirurgie", "Innere", "HNO", "Urologie")

Column = tuple[list[str], list[Any]]
"""Texts of cells, and what they are: a number, a text, or None."""


@dataclass(frozen=True)
class Drawn:
    """A file, and the truth of its cells."""

    path: Path
    dialect: Mapping[str, Any]
    """How pandas is told to read it; empty: a parquet file."""
    texts: Mapping[str, Sequence[str]]
    truth: Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class _Writing:
    separator: str
    encoding: str
    decimal: str
    thousands: str

    def number(self, value: float, decimals: int) -> str:
        """Return a number as it is written so."""
        marks = str.maketrans({".": self.decimal, ",": self.thousands})
        return f"{value:,.{decimals}f}".translate(marks)


def _writing(rng: np.random.Generator) -> _Writing:
    decimal = str(rng.choice([".", ","]))
    other = "," if decimal == "." else "."
    thousands = str(rng.choice(["", "", other, *_SPACES]))
    encodings = ["utf-8", "utf-8-sig", "utf-16"]
    if thousands != "\N{NARROW NO-BREAK SPACE}":
        encodings.append("cp1252")
    separator = str(rng.choice([",", ";", ";", "\t", "|"]))
    return _Writing(separator, str(rng.choice(encodings)), decimal, thousands)


def _quantity(rng: np.random.Generator, writing: _Writing, rows: int) -> Column:
    decimals = int(rng.integers(0, 4))
    values = rng.lognormal(rng.uniform(0, 8), rng.uniform(0.3, 1.5), rows).round(decimals)
    texts = [writing.number(value, decimals) for value in values]
    truth: list[Any] = values.tolist()
    kind = rng.integers(0, 6)
    for row in np.flatnonzero(rng.random(rows) < 0.15) if kind < 3 else ():
        texts[row], truth[row] = str(rng.choice([_MARKS[1], _WORDS[int(kind)]])), None
    if kind == 3:
        texts = [f"{text} mmol/L" for text in texts]
    elif kind == 4 and decimals == 1:
        for row in np.flatnonzero(rng.random(rows) < 0.15):
            texts[row], truth[row] = "-9999", None
    return texts, truth


def _date(rng: np.random.Generator, writing: _Writing, rows: int) -> Column:
    del writing
    written = str(rng.choice(_DAY_FORMATS))
    start = datetime.datetime(int(rng.integers(1970, 2040)), 1, 1)
    days = rng.integers(0, 700, rows)
    first_days = rng.random() < 0.3  # of each month, as in tables without names
    moments = [start + datetime.timedelta(minutes=int(d) * 1440 + 90 * int(d % 9)) for d in days]
    moments = [m.replace(day=1) if first_days else m for m in moments]
    texts = [moment.strftime(written) for moment in moments]
    read = [datetime.datetime.strptime(text, written) for text in texts]
    truth: list[Any] = [(r - datetime.datetime(1970, 1, 1)).total_seconds() / 86400 for r in read]
    for row in np.flatnonzero(rng.random(rows) < 0.05):
        texts[row], truth[row] = str(rng.choice(_MARKS)), None
    return texts, truth


def _patient(rng: np.random.Generator, writing: _Writing, rows: int) -> Column:
    del writing
    high = int(rng.choice([10**4, 2**60]))
    many = max(rows // 3, 2)
    ids = [high + int(n) for n in rng.integers(0, many, rows)]
    if rng.random() < 0.2:
        texts = [f"{n % 97}E{n % 5}" for n in ids]
        return texts, list(texts)
    return [str(n) for n in ids], [str(n) for n in ids]


def _ward(rng: np.random.Generator, writing: _Writing, rows: int) -> Column:
    del writing
    values = [str(value) for value in rng.choice(_WARDS, rows)]
    return values, list(values)


def _sign(rng: np.random.Generator, writing: _Writing, rows: int) -> Column:
    del writing
    values = ["+", "-", *(str(value) for value in rng.choice(["+", "-"], rows - 2))]
    return values, list(values)


def _code(rng: np.random.Generator, writing: _Writing, rows: int) -> Column:
    codes = rng.integers(1, 5, rows)
    return [f"{code}{writing.decimal}0" for code in codes], [float(code) for code in codes]


_KINDS = {
    "crp": _quantity,
    "ferritin": _quantity,
    "admitted": _date,
    "patient_id": _patient,
    "ward": _ward,
    "rhesus": _sign,
    "stage": _code,
}


def drawn(seed: int, folder: Path) -> Drawn:
    """Return a table that is drawn from a seed and written into a folder."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(20, 61))
    writing = _writing(rng)
    names = [str(n) for n in rng.choice([*_KINDS], int(rng.integers(2, 6)), replace=False)]
    columns = {name: _KINDS[name](rng, writing, rows) for name in names}
    label = ["yes", "no", *(str(each) for each in rng.choice(["yes", "no"], rows - 2))]
    columns["label"] = (label, list(label))
    texts = {name: cells for name, (cells, _) in columns.items()}
    truth = {name: values for name, (_, values) in columns.items()}
    frame = pd.DataFrame(texts)
    if rng.random() < 0.2:
        path = folder / f"table-{seed}.parquet"
        frame.to_parquet(path, index=False)
        return Drawn(path, {}, texts, truth)
    path = folder / f"table-{seed}.csv"
    dialect = {"sep": writing.separator, "encoding": writing.encoding}
    frame.to_csv(path, index=False, **dialect)
    if rng.random() < 0.1:
        line = f"sep={writing.separator}\n"
        path.write_text(line + path.read_text(writing.encoding), writing.encoding)
        dialect["skiprows"] = 1
    return Drawn(path, dialect, texts, truth)


def outcomes(table: Drawn) -> dict[str, str]:
    """Return read, said or wrong for each column, with why after a colon."""
    _hold_pandas_to_the_truth(table)
    checked = check_files([table.path])
    told = {problem.column for problem in checked.problems}
    told |= {None} if any(problem.column is None for problem in checked.problems) else set()
    found: dict[str, str] = {}
    columns = {column.name: column for column in checked.proposal.columns}
    for name in table.texts:
        column = columns.get(name)
        if column is None or column.drop or column.kind in ("id", "text"):
            found[name] = "said" if name in told else "wrong: left out without a word"
    rest = {name: column for name, column in columns.items() if name not in found}
    return found | _read(table, checked, rest)


def _hold_pandas_to_the_truth(table: Drawn) -> None:
    """Fail where pandas, told the dialect, has other cells: then the table is not what it says."""
    if table.dialect:
        frame = pd.read_csv(table.path, dtype=str, keep_default_na=False, **table.dialect)
    else:
        frame = pd.read_parquet(table.path)
    assert {name: frame[name].tolist() for name in frame} == dict(table.texts)


def _read(table: Drawn, checked: Checked, columns: Mapping[str, TableColumn]) -> dict[str, str]:
    """Return the outcomes of columns that the proposal reads."""
    told = {problem.column for problem in checked.problems}
    raw = read_raw(table.path)
    found: dict[str, str] = {}
    schema = checked.proposal
    while True:
        try:
            whole = schema.complete()
            result = decoded(raw, whole)
            break
        except ConfigError:  # nothing is left to learn from
            return found | {name: "said" for name in columns if name not in found}
        except DataError as error:
            refused = {
                name for name in columns if f": {name}: " in str(error) and name not in found
            }
            if not refused:
                return dict.fromkeys(columns, f"wrong: {error}")
            for name in refused:
                found[name] = "said" if name in told else f"wrong: {error}"
            schema = schema.replace(
                columns=tuple(
                    c.replace(drop="asked") if c.name in refused else c for c in schema.columns
                )
            )
    fitted = FittedTable.of(result.schema, result.features)
    for place, column in enumerate(whole.features):
        values = _values(column, result.features[:, place])
        truth, texts = (
            [cells[column.name][row] for row in result.rows] for cells in (table.truth, table.texts)
        )
        found[column.name] = _compared(values, truth)
        if column.kind == "category" and column.name in told and found[column.name] != "read":
            written = [
                text if value == text else known
                for value, text, known in zip(values, texts, truth, strict=True)
            ]
            if _compared(values, written) == "read":
                found[column.name] = "said"
    if whole.group is not None and result.group is not None:
        wanted = pd.factorize(np.array(table.truth[whole.group.name], object)[result.rows])[0]
        same = np.array_equal(pd.factorize(result.group)[0], wanted)
        found[whole.group.name] = "read" if same else "wrong: groups"
    found[whole.label.name] = _compared(
        _values(whole.label, result.label), [table.truth["label"][r] for r in result.rows]
    )
    return found | _read_again(raw, fitted, result.features, [c.name for c in whole.features])


def _values(column: TableColumn, values: NDArray[np.float64] | None) -> list[Any]:
    assert values is not None
    if column.kind in ("category", "label"):
        return [None if np.isnan(v) else column.categories[int(v)] for v in values]
    return [None if np.isnan(v) else float(v) for v in values]


def _compared(values: Sequence[Any], truth: Sequence[Any]) -> str:
    for value, wanted in zip(values, truth, strict=True):
        if isinstance(value, str) and isinstance(wanted, float):
            value = float(value) if is_number(value) else value
        alike = value == wanted
        if isinstance(value, float) and isinstance(wanted, float):
            alike = abs(value - wanted) <= 1e-9 * max(1.0, abs(wanted))
        if not alike:
            return f"wrong: {value!r} is {wanted!r}"
    return "read"


def _read_again(
    raw: RawTable, fitted: FittedTable, features: NDArray[np.float64], names: Sequence[str]
) -> dict[str, str]:
    """Return what is wrong where the first row, by itself, is read as another than among all."""
    first = RawTable(
        raw.path, raw.names, tuple(column.slice(0, 1) for column in raw.columns), raw.separator
    )
    try:
        again = decoded(first, fitted.table_schema, new=True).features[0]
    except DataError as error:
        return dict.fromkeys(names, f"wrong: by itself: {error}")
    wrong = ~np.isclose(again, features[0], rtol=1e-12, equal_nan=True)
    return {
        name: f"wrong: by itself {again[place]}" for place, name in enumerate(names) if wrong[place]
    }


def main(words: Sequence[str] | None = None) -> int:
    """Draw tables, print how their columns came out, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--number", type=int, default=10_000, help="of tables")
    parser.add_argument("--seed", type=int, default=0, help="of the first; each has its own")
    asked = parser.parse_args(words)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(asked.seed, asked.seed + asked.number):
            table = drawn(seed, Path(folder))
            for name, outcome in outcomes(table).items():
                kind = outcome.partition(":")[0]
                counts[kind] += 1
                if kind == "wrong":
                    print(f"table {seed}: {name}: {outcome}")
            table.path.unlink()
    print(f"{asked.number} tables, columns:", *(f"{n} {kind}" for kind, n in counts.items()))
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
