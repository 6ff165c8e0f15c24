"""Sections of a report: its pictures and tables, and those of packages installed beside it.

A section is a function of a run as its folder holds it. Every installed one is asked for every
run's report; one that has nothing to say of a run returns nothing.
"""

from collections.abc import Callable, Iterable, Sequence

from common.errors import ConfigError, CoterieError
from common.foreign.code import contained, top_level
from common.plugins import Table
from server_app.record.recorded_run import RecordedRun
from server_app.report.page import Absence, PageTable, Picture
from server_app.report.pictures import pictures_of_run
from server_app.report.tables import tables_of_run

__all__ = ["SECTIONS", "Part", "parts_of"]

Part = Picture | Absence | PageTable
Section = Callable[[RecordedRun], Iterable[Part]]

SECTIONS: Table[Section] = Table(
    "report-section",
    "coterie.report-sections",
    {"pictures": pictures_of_run, "tables": tables_of_run},
    of=Callable,
)
"""In the order in which they are asked; the page has all pictures before all tables."""


def parts_of(run: RecordedRun) -> list[Part]:
    """Return all that the sections say of a run, inside :func:`drawing.style`.

    In the place of one from elsewhere that fails stands why, with the name of its package.
    """
    parts: list[Part] = []
    try:
        names = tuple(SECTIONS)
    except ConfigError as error:  # as two of one name: none from elsewhere is shown
        parts, names = [Absence("Sections of installed packages", str(error))], SECTIONS.built_in
    for name in names:
        foreign = SECTIONS.is_foreign(name)
        parts += _from_elsewhere(name, run, parts) if foreign else SECTIONS[name](run)
    return parts


def _from_elsewhere(name: str, run: RecordedRun, before: Sequence[Part]) -> Sequence[Part]:
    try:
        section = SECTIONS[name]
        package = top_level(SECTIONS.module_of(name)) or "this program"
        with contained(f"{package}: report section {name!r}"):
            parts = tuple(section(run))
            _check(parts, before)
    except CoterieError as error:
        return (Absence(f"Section {name}", str(error)),)
    return parts


def _check(parts: Sequence[object], before: Sequence[Part]) -> None:
    """Refuse what is no part of a page, and a picture whose file another one has."""
    files = {part.name for part in before if isinstance(part, Picture)}
    for part in parts:
        if not isinstance(part, Part):
            raise ConfigError(
                f"gives a {type(part).__name__}; it must give PageTable, Picture or Absence"
            )
        if isinstance(part, Picture):
            if part.name in files:
                raise ConfigError(f"there is another picture {part.name!r}; rename it")
            files.add(part.name)
