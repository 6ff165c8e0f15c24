"""Problems of tables: all that stands between files and a federation, each said once.

They are found in one reading of every file: in a file by itself, between files, or against the
schema that all sites agreed on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from common.errors import quotable
from common.tables import guesses
from common.tables.profiles import ColumnProfile
from common.tables.proposing import is_continuous, usual_columns
from common.tables.reading import RawTable
from common.tables.table_schema import MOST_CLASSES, TableColumn

__all__ = ["KINDS", "Problem", "between", "in_file"]

KINDS = (
    *("separator", "encoding", "id", "date", "category", "missing", "order", "extra-column"),
    *("missing-column", "duplicate-column", "constant", "imbalance", "continuous-label"),
    *("infinite", "ragged", "one-class", "all-missing", "many-categories", "decimal", "text"),
)
"""What a problem can be."""

_RARE_SHARE = 0.1  # of the rows: a class below it needs metrics other than accuracy
_QUOTED = 5


@dataclass(frozen=True)
class Problem:
    """One thing that is not as a run needs it."""

    file: str
    column: str | None
    kind: str
    says: str

    def __post_init__(self) -> None:
        assert self.kind in KINDS

    def __str__(self) -> str:
        where = self.file if self.column is None else f"{self.file}: {self.column}"
        return f"{where}: {self.kind}: {self.says}"


def in_file(
    raw: RawTable, profiles: Sequence[ColumnProfile], kinds: Mapping[str, TableColumn], label: str
) -> list[Problem]:
    """Return what one file shows by itself.

    Args:
        raw: the file.
        profiles: of its columns.
        kinds: what is proposed for each.
        label: the column that is to be learned; one that is not there is a problem.
    """
    file = str(raw.path)
    found = [Problem(file, None, kind, says) for kind, says in _of_form(raw)]
    if label not in raw.names:
        found.append(Problem(file, label or None, "missing-column", _no_label(label)))
    for name in dict.fromkeys(n for n in raw.names if raw.names.count(n) > 1):
        says = f"{raw.names.count(name)} columns have this name; the first is meant"
        found.append(Problem(file, name, "duplicate-column", says))
    for profile in {p.name: p for p in reversed(profiles)}.values():
        said = _of_label(profile) if profile.name == label else _of_feature(profile, kinds)
        found += [
            Problem(file, profile.name, kind, says) for kind, says in (*_of_cells(profile), *said)
        ]
    places = {name: place for place, name in enumerate(raw.names)}
    return sorted(found, key=lambda problem: places.get(problem.column or "", -1))


Said = Iterator[tuple[str, str]]


def _no_label(label: str) -> str:
    if label:
        return "the label is not there"
    return "no column goes by a usual name of a label; say which it is: --label-column NAME"


def _of_form(raw: RawTable) -> Said:
    """Yield what is unusual in how a file is written."""
    yield from guesses.in_form(raw)
    if raw.ragged:
        row, cells = raw.ragged[0]
        yield (
            "ragged",
            f"{len(raw.ragged)} rows have more or fewer cells than the {len(raw.names)} of the "
            f"header; row {row} has {cells}; they are left out",
        )


def _of_cells(profile: ColumnProfile) -> Said:
    """Yield what is wrong with single cells."""
    if not profile.known:
        yield "all-missing", f"none of the {profile.rows} rows has a value"
        return
    if profile.missing:
        yield "missing", _counted(profile.missing, profile.rows)
    if profile.infinite:
        yield "infinite", _counted(profile.infinite, profile.rows) + "; taken as missing"
    if profile.others:
        held = _counted(profile.others, profile.rows)
        yield "text", f"{held}: no numbers, as the others are; taken as missing"
    yield from guesses.in_profile(profile)


def _counted(cells: Mapping[str, int], rows: int) -> str:
    first = ", ".join(repr(quotable(cell)) for cell in list(cells)[:_QUOTED])
    more = f" and {len(cells) - _QUOTED} others" if len(cells) > _QUOTED else ""
    return f"{first}{more} in {sum(cells.values())} of {rows} rows"


def _of_label(profile: ColumnProfile) -> Said:
    """Yield what makes a label hard to learn."""
    if not profile.known:
        return
    if is_continuous(profile):
        low, high = profile.low, profile.high
        yield "continuous-label", f"numbers from {low:g} to {high:g}, no classes; task = regression"
        return
    if not profile.values:
        says = f"{profile.distinct} classes, of which {MOST_CLASSES} can be told apart at most"
        yield "many-categories", f"{says}; name another label, or join classes in the file"
        return
    if len(profile.values) == 1:
        yield "one-class", f"all rows are {quotable(next(iter(profile.values)))!r}"
        return
    counts = np.array(list(profile.values.values()))
    if counts.min() < _RARE_SHARE * counts.sum():
        rare = min(profile.values, key=lambda value: profile.values[value])
        share = counts.min() / counts.sum()
        yield "imbalance", f"{quotable(rare)!r} is {share:.1%} of the rows: accuracy says little"


def _of_feature(profile: ColumnProfile, kinds: Mapping[str, TableColumn]) -> Said:
    """Yield what keeps a column from being a feature as it is."""
    if not profile.known:
        return
    column = kinds[profile.name]
    if column.kind == "date":
        yield "date", f"written {column.date[0]}; becomes its days since 1970"
    elif profile.is_constant:
        yield "constant", "all rows have one value; left out unless other sites differ"
    elif column.kind in ("id", "group"):
        what = "left out" if column.drop else "rows of one value belong together"
        yield "id", f"{profile.distinct} values in {profile.rows} rows tell cases apart; {what}"
    elif column.kind == "text":
        yield "text", f"{column.drop}; left out"
    elif column.kind == "category" and column.drop:
        yield "many-categories", f"{column.drop}; left out"
    elif not profile.is_numeric:
        values = ", ".join(map(quotable, list(profile.values)[:_QUOTED]))
        more = ", ..." if len(profile.values) > _QUOTED else ""
        yield "category", f"texts: {values}{more}; {len(profile.values)} values become numbers"


def between(headers: Mapping[str, Sequence[str]]) -> list[Problem]:
    """Return where files differ in their columns, by what more than half of them have."""
    usual = usual_columns(list(headers.values()))
    found: list[Problem] = []
    for file, header in headers.items():
        own = list(dict.fromkeys(header))
        found += _against_usual(file, own, usual)
    return found


def _against_usual(file: str, own: Sequence[str], usual: Sequence[str]) -> Iterator[Problem]:
    for name in usual:
        if name not in own:
            yield Problem(file, name, "missing-column", "most other files have it; left out")
    for name in own:
        if name not in usual:
            yield Problem(file, name, "extra-column", "most other files lack it; left out")
    order = [name for name in own if name in usual]
    if order != [name for name in usual if name in own]:
        yield Problem(file, None, "order", "columns stand in another order; read by their names")
