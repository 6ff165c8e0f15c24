"""Comparison: many runs, one table; what has finished is never run again."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from client_app.simulated_sites import with_task
from common.data.datasets import locate
from common.errors import ComparisonError, ConfigError, CoterieError
from deploy.compare import page, tables
from deploy.compare.figures import Row, RunFigures, rows_of
from deploy.compare.grid import Case, Grid
from deploy.compare.recorded import lay_out, record
from deploy.compare.runs import Outcome, Progress, alone, found, play
from server_app import methods
from server_app.record.run_folder import RunFolder


def compared(grid: Grid, jobs: int = 0, records: Path | None = None, *, plays: bool = True) -> Path:
    """Run what is missing, write the tables and the page, and return the comparison's folder.

    Every run is checked before the first one starts.

    Args:
        grid: the runs.
        jobs: processes; 0: one per core that this process may use.
        records: a folder of recorded runs, which are not played, and to which those that are
            played are added; None: none.
        plays: whether what is missing is played; else the tables are of what is there.

    Raises:
        ComparisonError: a run failed, or none is there.
    """
    grid = replace(grid, cases=tuple(_checked(case) for case in grid.cases))
    folder = grid.output
    with alone(folder):
        show = _Line()

        def report(progress: Progress) -> None:
            show(progress)
            if records:
                record(records, progress.ended)

        if records:
            lay_out(records, grid.cases, folder / "runs")
        if plays:
            outcomes = play(grid.cases, folder, jobs or len(os.sched_getaffinity(0)), report)
            show.end()
        else:
            outcomes = found(grid.cases, folder)
            _say_missing(outcomes, folder)
        if records:
            record(records, outcomes)
        rows = _write(grid, outcomes, folder)
    if rows:
        print(_in_words(rows, grid))
    print(f"\npage: {(folder / 'comparison.html').as_uri()}\ncomparison: {folder}")
    _refuse_failures(outcomes)
    return folder


def _checked(case: Case) -> Case:
    """Return a case that could start: its method can be built and its data set be found."""
    try:
        located = with_task(case.settings.replace(dataset=locate(case.settings.dataset)))
        methods.build(located)
    except CoterieError as error:
        raise ConfigError(f"{case.label}: {error}") from None
    return replace(case, settings=located)


def _write(grid: Grid, outcomes: Sequence[Outcome], folder: Path) -> list[Row]:
    """Write all that is derived from the runs, and return the table's rows."""
    runs = [RunFigures.of(o.case, o.folder) for o in outcomes if o.folder is not None]
    rows = rows_of(runs, grid.reference)
    sections = page.sections(rows, grid)
    files = RunFolder(folder)
    files.write("table.csv", tables.table_csv(rows, grid) if rows else "")
    files.write("differences.csv", tables.differences_csv(rows, grid) if rows else "")
    files.write("runs.csv", tables.runs_csv(outcomes, runs))
    files.write("table.md", f"# {grid.title}\n\n{_in_words(rows, grid)}\n" if rows else "")
    for section in sections:
        for picture in section.pictures:
            files.write(f"plots/{picture.name}.svg", picture.document)
    files.write("comparison.html", page.html(sections, rows, outcomes, grid))
    return rows


def _in_words(rows: Sequence[Row], grid: Grid) -> str:
    first, *meanings = tables.legend(rows, grid)
    over = tables.overall_markdown(rows, grid)
    parts = [over, ""] if over else []
    parts += [tables.markdown(rows, grid), "", first, "", *(f"- {m}" for m in meanings)]
    return "\n".join(parts)


def _say_missing(outcomes: Sequence[Outcome], folder: Path) -> None:
    done = sum(outcome.folder is not None for outcome in outcomes)
    if not done:
        raise ComparisonError(
            f"{folder}: none of the {len(outcomes)} runs is there; leave --no-play out, or name "
            "the folder of their records with --recorded"
        )
    print(f"{done} of {len(outcomes)} runs are there")


def _refuse_failures(outcomes: Sequence[Outcome]) -> None:
    failed = [outcome for outcome in outcomes if outcome.error]
    if failed:
        alike: dict[str, list[Outcome]] = {}
        for outcome in failed:
            alike.setdefault(outcome.error, []).append(outcome)
        lines = [f"{_whose(group)}: {error}" for error, group in alike.items()]
        lines.append(
            f"{len(failed)} of {len(outcomes)} runs failed; the same command tries them again"
        )
        raise ComparisonError("\n".join(lines))


def _whose(alike: Sequence[Outcome]) -> str:
    """Return whose error it is: missing data are the same error for hundreds of runs."""
    more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
    return f"{alike[0].case.label}{more}"


class _Line:
    """The line that says where a comparison stands: rewritten on a terminal, else one per run."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._seen = -1

    def __call__(self, progress: Progress) -> None:
        """Show the progress, if there is something new."""
        text = _words(progress)
        if self._terminal:
            print(f"\r\033[K{text}", end="", flush=True)
        elif len(progress.ended) != self._seen:
            print(text, flush=True)
            self._seen = len(progress.ended)

    def end(self) -> None:
        """Leave the line."""
        if self._terminal:
            print()


def _words(progress: Progress) -> str:
    failed = sum(1 for outcome in progress.ended if outcome.error)
    parts = [f"{progress.done} of {progress.total} runs done"]
    if progress.found and not progress.ended:
        parts.append(f"{progress.found} were there already")
    if failed:
        parts.append(f"{failed} failed")
    if progress.running:
        parts.append(f"{progress.running} running")
    if progress.seconds_left and progress.running:
        parts.append(f"about {_duration(progress.seconds_left)} left")
    if progress.ended:
        last = progress.ended[-1]
        parts.append(f"last: {last.case.label}{' FAILED' if last.error else ''}")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
