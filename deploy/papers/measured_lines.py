"""Measured lines: what an experiment measured, kept in a file, so that nothing is measured twice.

A line is a JSON object with its ``key``, which says all that its numbers depend on. A record is the
lines of a folder, sorted and compressed, from which another machine goes on.
"""

import json
import lzma
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.errors import ConfigError

__all__ = ["MeasuredLines", "Values", "lay_out", "record"]

Values = dict[str, Any]
Key = tuple[Any, ...]

_FILE = "results.jsonl"


class MeasuredLines:
    """The lines of a folder, on disk and in memory."""

    def __init__(self, folder: Path, minutes: float = math.inf) -> None:
        """Read what is there; no measurement starts ``minutes`` from now or later."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / _FILE
        self._until = time.monotonic() + 60 * minutes
        self._lines = _of_file(self._file)

    def __len__(self) -> int:
        return len(self._lines)

    def once(self, key: Key, measure: Callable[[], Values]) -> Values | None:
        """Return a key's line, measured now if it is not there; None if it is too late for that.

        Args:
            key: numbers and words.
            measure: returns what JSON can hold.
        """
        if key not in self._lines:
            if time.monotonic() >= self._until:
                return None
            text = json.dumps({"key": key, **measure()})
            with self._file.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
            self._lines |= _read(text)
        return self._lines[key]

    def required(self, key: Key, measure: Callable[[], Values]) -> Values:
        """Return the same, where nothing can be shown without it.

        Raises:
            ConfigError: it is too late to measure it.
        """
        line = self.once(key, measure)
        if line is None:
            raise ConfigError(
                f"{self._file}: no line of {key}, and the minutes are over; give more"
            )
        return line


def lay_out(records: Path, name: str, folder: Path) -> None:
    """Put a record's lines into a folder, beside those that are there.

    Raises:
        ConfigError: the record cannot be read.
    """
    path = _path(records, name)
    if not path.exists():
        return
    try:
        lines = _read(lzma.decompress(path.read_bytes()).decode())
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}); delete it, and all of it is measured again"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / _FILE
    file.write_text(_text(lines | _of_file(file)), encoding="utf-8")


def record(records: Path, name: str, folder: Path) -> None:
    """Write a folder's lines as a record; nothing where there are none, or it holds the same."""
    file, path = folder / _FILE, _path(records, name)
    if not file.exists():
        return
    content = lzma.compress(_text(_of_file(file)).encode(), preset=9)
    if not path.exists() or path.read_bytes() != content:
        records.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(content)
        part.replace(path)


def _path(records: Path, name: str) -> Path:
    return records / f"{name}.jsonl.xz"


def _of_file(file: Path) -> dict[Key, Values]:
    """Return a file's lines by key; one that was cut off while it was written is taken away."""
    if not file.exists():
        return {}
    text = file.read_text("utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole, encoding="utf-8")
    return _read(whole)


def _read(text: str) -> dict[Key, Values]:
    lines = [json.loads(line) for line in text.splitlines()]
    return {tuple(line["key"]): line for line in lines}


def _text(lines: dict[Key, Values]) -> str:
    ordered = sorted(json.dumps(line) for line in lines.values())
    return "".join(f"{line}\n" for line in ordered)
