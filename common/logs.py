"""Log lines: as JSON, one object per line, and the facts some carry for a run's audit trail."""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TextIO

from common.errors import CoterieError

FACTS = "audit"
"""Attribute of a log record that holds facts (a list of mappings) beside its text."""

ROUND = "round_line"
"""Attribute of a log record that holds the line of an attempt at a round beside its text."""

FOLDER = "run_folder"
"""Attribute of a run's first log record that holds the path of its folder beside its text."""

EVENTS = (
    "started",
    "resumed",
    "joined",
    "left",
    "refused",
    "rejected",
    "missing",
    "released",
    "round",
    "finished",
    "failed",
)
"""What can happen in a run that its audit trail tells."""

Fact = Mapping[str, object]


def fact(event: str, **values: object) -> dict[str, list[Fact]]:
    """Return what makes a log line an entry of the audit trail, as its ``extra``.

    >>> fact("left", site="north")
    {'audit': [{'event': 'left', 'site': 'north'}]}
    """
    assert event in EVENTS
    return {FACTS: [{"event": event, **values}]}


def facts(event: str, entries: Iterable[Fact]) -> dict[str, list[Fact]]:
    """Return what makes one log line several entries."""
    return {FACTS: [entry for values in entries for entry in fact(event, **values)[FACTS]]}


def as_line(time: datetime, level: str, source: str, message: str, **more: object) -> str:
    """Return one log line.

    >>> as_line(datetime(2026, 1, 2, tzinfo=UTC), "INFO", "run", "ready")
    '{"time": "2026-01-02T00:00:00.000+00:00", "level": "info", "source": "run", \
"message": "ready"}'
    """
    words = {"time": time.isoformat(timespec="milliseconds"), "level": level.lower()}
    return json.dumps({**words, "source": source, "message": message, **more})


class JsonFormatter(logging.Formatter):
    """Formats records as JSON lines, with the facts that come with some of them."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; an exception's traceback is part of its message."""
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        time = datetime.fromtimestamp(record.created, UTC)
        facts: list[Fact] = getattr(record, FACTS, [])
        return as_line(time, record.levelname, "run", message, **({FACTS: facts} if facts else {}))


class ProgressHandler(logging.StreamHandler[TextIO]):
    """Writes lines until nobody reads them or nothing takes them; what logs them goes on.

    A reader that left (``coterie simulate | head``) wants no more lines. A full disk is said once,
    on standard error.
    """

    _ended = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record's line."""
        if not self._ended:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """End the lines where the stream cannot be written; say all else, as logging does."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._ended = True
        let_go(self.stream)
        if not isinstance(error, BrokenPipeError):
            with contextlib.suppress(OSError):
                print(
                    f"coterie: no more lines: {error.strerror}; all else goes on", file=sys.stderr
                )


def let_go(stream: TextIO) -> None:
    """Lead to nowhere what a stream cannot write, or Python would try again at its end."""
    with contextlib.suppress(OSError, ValueError):  # a stream that is no file of the system's
        descriptor = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(descriptor, stream.fileno())
        finally:
            os.close(descriptor)


def show_progress(*, as_json: bool = False) -> None:
    """Let the run's progress lines reach standard output, unless somebody listens already."""
    log = logging.getLogger("coterie")
    if not log.hasHandlers():
        handler = ProgressHandler(sys.stdout)
        handler.setFormatter(JsonFormatter() if as_json else logging.Formatter("%(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)


class _Reasons(logging.Filter):
    """Lets what Flower logs of our own errors say the reason alone, without a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, CoterieError):
            record.msg, record.args = "%s: %s", (record.getMessage(), error)
            record.exc_info = None
        return True


_REASONS = _Reasons()


def show_reasons_only() -> None:
    """Let Flower's log tell a run's end by an error of ours in one line, as our commands do."""
    logging.getLogger("flwr").addFilter(_REASONS)
