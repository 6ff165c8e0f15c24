"""Log lines as JSON: one object per line, the same from the run, the SuperLink and the sites."""

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime

FACTS = "audit"
"""Attribute of a log record that holds facts (a list of mappings) beside its text."""


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
        facts: list[Mapping[str, object]] = getattr(record, FACTS, [])
        return as_line(time, record.levelname, "run", message, **({FACTS: facts} if facts else {}))
