"""Checks of tables: what a file lacks to be used, and the schema that would let it be used."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from common.errors import DataError
from common.tables.decoding import problems_against
from common.tables.problems import Problem, between, in_file
from common.tables.profiles import ColumnProfile, profile
from common.tables.proposing import guess_label, joined, proposed
from common.tables.reading import RawTable, read_raw
from common.tables.table_schema import TableProposal, TableSchema

__all__ = ["Checked", "check_against", "check_files"]

T = TypeVar("T")


@dataclass(frozen=True)
class Checked:
    """What a check of files found."""

    problems: tuple[Problem, ...]
    proposal: TableProposal
    """What would let all of them be used; not always enough for a schema."""


@dataclass(frozen=True)
class _File:
    """What is kept of a file: not its cells."""

    form: RawTable
    profiles: tuple[ColumnProfile, ...]


def check_files(files: Sequence[Path], label_column: str = "") -> Checked:
    """Return all problems of all files, and what each would need.

    Args:
        files: tables.
        label_column: what is to be learned; empty: a usual name that all files have.

    Raises:
        DataError: a line for each file that cannot be read.
    """
    read = _each(files, _profiled)
    headers = {str(own.form.path): own.form.names for own in read}
    label = label_column or guess_label(list(headers.values()))
    problems: list[Problem] = []
    proposals: list[TableProposal] = []
    apart = between(headers)
    for own in read:
        file = str(own.form.path)
        proposal = proposed(own.profiles, label, ragged=bool(own.form.ragged))
        kinds = {column.name: column for column in proposal.columns}
        problems += in_file(own.form, own.profiles, kinds, label)
        problems += [problem for problem in apart if problem.file == file]
        proposals.append(proposal)
    return Checked(tuple(problems), joined(proposals))


def check_against(files: Sequence[Path], schema: TableSchema) -> tuple[Problem, ...]:
    """Return what files hold that a schema has no answer for.

    Raises:
        DataError: a line for each file that cannot be read.
    """
    found = _each(files, lambda file: problems_against(read_raw(file), schema))
    return tuple(problem for problems in found for problem in problems)


def _each(files: Sequence[Path], look: Callable[[Path], T]) -> list[T]:
    """Return what is found in each file; one that cannot be read does not hide the next."""
    found: list[T] = []
    refused: list[str] = []
    for file in files:
        try:
            found.append(look(file))
        except DataError as error:
            refused.append(str(error))
    if refused:
        raise DataError("\n".join(refused))
    return found


def _profiled(file: Path) -> _File:
    raw = read_raw(file)
    profiles = [profile(name, cells) for name, cells in zip(raw.names, raw.columns, strict=True)]
    return _File(replace(raw, columns=()), tuple(profiles))
