"""Python interface: simulations, comparisons and prechecks, as the command line has them.

Settings are words with underscores for dashes: ``num_clients=8`` is ``num-clients=8``. Progress is
printed unless ``quiet``; the caller's logging, warnings and torch threads are left as they were.
"""

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from common import logs
from common.config import Scalar, Settings, kebab_case
from common.errors import ConfigError
from deploy.played_run import PlayedRun
from deploy.tracking.tracked import tracking
from server_app.record.format import RoundLine

__all__ = ["compare", "precheck", "simulate"]

OnRound = Callable[[dict[str, Any]], object]
Value = Scalar | os.PathLike[str]


def simulate(
    settings: Settings | None = None,
    *,
    on_round: OnRound | None = None,
    quiet: bool = False,
    track: str | Sequence[str] = (),
    **words: Value,
) -> PlayedRun:
    """Run a whole federation on this machine and return its run.

    Args:
        settings: all of them; or
        words: those that differ from their defaults.
        on_round: is called with each attempt at a round as ``rounds.jsonl`` has it; what it raises
            ends the run.
        quiet: print nothing.
        track: ``mlflow``, ``tensorboard``, ``wandb`` or several; each is an extra to install.

    Raises:
        CoterieError: one line, before anything starts where that is possible.
    """
    if settings is not None and words:
        raise ConfigError(
            f"settings and {kebab_case(next(iter(words)))} both say what to run; use "
            "settings.replace(...)"
        )
    trackers = [track] if isinstance(track, str) else track
    with _shown(quiet, on_round), tracking(trackers), _as_it_was():
        from common.data.datasets import locate
        from deploy.simulation import grid
        from server_app.methods import build

        settings = settings or Settings.parse(_values(words))
        build(settings)
        return PlayedRun(grid.simulate(settings.replace(dataset=locate(settings.dataset))))


def compare(
    file: str | os.PathLike[str] | None = None,
    *,
    quick: bool = False,
    reference: str = "",
    jobs: int = 0,
    quiet: bool = False,
    **words: Value | Sequence[Value],
) -> Path:
    """Run many federations, skip those that are done, and return the comparison's folder.

    It holds ``table.csv``, ``runs.csv`` and ``comparison.html``.

    Args:
        file: a comparison's TOML file.
        words: settings that go over it; a list has a run for each of its values.
        quick: the file's variant for ten minutes.
        reference: the row that the others are held against; else the first.
        jobs: runs at a time; 0: one per core.
        quiet: print nothing.
    """
    from deploy.compare.compare import compared
    from deploy.compare.grid import read_grid

    given = [f"{kebab_case(name)}={_listed(value)}" for name, value in words.items()]
    path = None if file is None else Path(file)
    with contextlib.redirect_stdout(io.StringIO()) if quiet else contextlib.nullcontext():
        return compared(read_grid(path, given, quick=quick, reference=reference), jobs)


def precheck(*files: str | os.PathLike[str], quiet: bool = False, **words: Value) -> dict[str, Any]:
    """Say whether federating is worth it; what ``coterie precheck --json`` prints.

    Args:
        files: one for each site; or
        words: settings, ``dataset`` among them.
        quiet: print nothing.
    """
    given = [os.fspath(file) for file in files]
    given += [f"{kebab_case(name)}={_word(value)}" for name, value in words.items()]
    with _shown(quiet, None), _as_it_was():
        from deploy import precheck as check

        return check.result(check.run(check.precheck_plan(given, None)))


def _values(words: dict[str, Value]) -> dict[str, object]:
    return {
        kebab_case(name): os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in words.items()
    }


def _word(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _listed(value: Value | Sequence[Value]) -> str:
    several = isinstance(value, Sequence) and not isinstance(value, str)
    return ",".join(map(_word, value)) if several else _word(value)  # type: ignore[arg-type]


class _Callback(logging.Handler):
    """Hands each attempt at a round to a function."""

    def __init__(self, call: OnRound) -> None:
        super().__init__()
        self._call = call

    def emit(self, record: logging.LogRecord) -> None:
        line = getattr(record, logs.ROUND, None)
        if isinstance(line, RoundLine):
            self._call(line.to_json())


@contextlib.contextmanager
def _shown(quiet: bool, on_round: OnRound | None) -> Iterator[None]:
    """Print a run's lines and call back while the block runs; logging is then as before."""
    log = logging.getLogger("coterie")
    # A handler of whoever called may listen already; one that says nothing keeps ours away.
    listens = logging.NullHandler() if quiet or log.hasHandlers() else _to_stdout()
    handlers = [listens, *([_Callback(on_round)] if on_round else [])]
    level = log.level
    for handler in handlers:
        log.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            log.removeHandler(handler)
        log.setLevel(level)


def _to_stdout() -> logging.Handler:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Put back torch's threads and the filters of warnings when the block ends."""
    import torch

    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        try:
            yield
        finally:
            torch.set_num_threads(threads)
