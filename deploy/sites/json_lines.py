"""JSON lines, one object each, in place of those that Flower's programs print.

``{"time": UTC, "level": "info", "source": "superlink", "message": ...}``; a line that is such an
object already, as the run's own with ``log-format=json``, passes as it is.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from common.logs import as_line
from common.machine import STOPS, stop

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LEVELS = "DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL"
# Flower's "INFO :      text", and "2026-11-21T11:30:22.843Z INFO [uvicorn.error] text".
_LEVEL = re.compile(rf"\s*(?:\S+Z )?({_LEVELS})\s*(?::|\[[\w.]+\])\s*(.*)", re.DOTALL)


def as_json(line: str, source: str, now: datetime) -> str | None:
    """Return a printed line as JSON; None for an empty one.

    >>> as_json("INFO :  ready", "site a", datetime(2026, 1, 2, tzinfo=UTC))
    '{"time": "2026-01-02T00:00:00.000+00:00", "level": "info", "source": "site a", \
"message": "ready"}'
    """
    text = _COLOUR.sub("", line).rstrip()
    if _is_record(text):
        return text
    match = _LEVEL.fullmatch(text)
    level, message = match.groups() if match else ("INFO", text)
    if not message.strip():
        return None
    return as_line(now, "WARNING" if level == "WARN" else level, source, message.strip())


def _is_record(text: str) -> bool:
    if not text.startswith("{"):
        return False
    try:
        record: Any = json.loads(text)
    except json.JSONDecodeError:
        return False
    return isinstance(record, dict) and {"time", "level", "message"} <= record.keys()


def rewrite(command: Sequence[str], env: Mapping[str, str], source: str) -> int:
    """Run a command, print its lines as JSON and return its exit code; signals are passed on."""
    process = subprocess.Popen(  # noqa: S603 - our own command
        command,
        env=dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    for number in STOPS:
        signal.signal(number, lambda received, _: stop(process, received))
    assert process.stdout is not None
    for line in process.stdout:
        record = as_json(line, source, datetime.now(UTC))
        if record is not None:
            print(record, flush=True)
    sys.stdout.flush()
    return process.wait()
