"""Audit trail of a run: who joined, who was refused, what was rejected, what left each site.

``audit.jsonl`` is only ever appended to, also when a run goes on after a crash, and every line is
on disk before the run does anything that rests on it. What happens reaches it through the log:
``log.warning(text, extra=audit.fact(...))`` is both a line for people and an entry here.
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from common.logs import FACTS
from server_app.record.run_folder import RunFolder

FILE = "audit.jsonl"
EVENTS = (
    "started",
    "resumed",
    "joined",
    "left",
    "refused",
    "rejected",
    "missing",
    "released",
    "finished",
    "failed",
)

Fact = Mapping[str, object]


def fact(event: str, **values: object) -> dict[str, list[Fact]]:
    """Return what makes a log line an entry of the audit trail, as its ``extra``."""
    assert event in EVENTS
    return {FACTS: [{"event": event, **values}]}


def facts(event: str, entries: Iterable[Fact]) -> dict[str, list[Fact]]:
    """Return what makes one log line several entries."""
    return {FACTS: [entry for values in entries for entry in fact(event, **values)[FACTS]]}


def append(folder: RunFolder, event: str, *entries: Fact) -> None:
    """Append entries that are no log lines."""
    _append(folder, facts(event, entries)[FACTS])


@contextlib.contextmanager
def trail(folder: RunFolder, log: logging.Logger) -> Iterator[None]:
    """Append what is logged with facts to a run's audit trail."""
    handler = _Trail(folder)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Trail(logging.Handler):
    """Appends the facts of log records; what cannot be written stops the run."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__()
        self._folder = folder

    def emit(self, record: logging.LogRecord) -> None:
        entries: list[Fact] = getattr(record, FACTS, [])
        if entries:
            _append(self._folder, entries)


def _append(folder: RunFolder, entries: Iterable[Fact]) -> None:
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    folder.append(FILE, [{"time": time, **entry} for entry in entries])
