"""Foreign code: pieces that a setting finds by their place in a module, or that a program gives."""

import contextlib
import functools
import hashlib
import inspect
import io
import logging
import re
import sys
import traceback
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from common.errors import ConfigError, CoterieError, quotable

__all__ = [
    "PLACE",
    "contained",
    "given_name",
    "hushed",
    "in_one_line",
    "is_from_elsewhere",
    "is_given",
    "place_of",
    "raised_in",
    "top_level",
]

log = logging.getLogger("coterie")

_WORD = r"[A-Za-z_]\w*"
PLACE = re.compile(rf"({_WORD}(?:\.{_WORD})*):({_WORD}(?:\.{_WORD})*)")
"""A module, and a name in it."""
_FROM_PYTHON = "python:"
"""What the name of a piece begins with that a program gave and no module holds."""


@contextlib.contextmanager
def contained(where: str, what: str = "") -> Iterator[None]:
    """Run code from elsewhere: what it raises and what it prints becomes one line that names it."""
    try:
        with hushed(where):
            yield
    except CoterieError as error:
        raise type(error)(f"{where}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}{what}: {in_one_line(error)}") from error


@contextlib.contextmanager
def hushed(where: str) -> Iterator[None]:
    """Run code from elsewhere: what it prints becomes one line of the log that names it."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        text = quotable(printed.getvalue())
        if text and next(_once(where), False):
            log.warning("%s: it prints %s", where, text)


@functools.cache
def _once(where: str) -> Iterator[bool]:
    """Return what gives True once in a process: a network may print in every batch."""
    return iter([True])


def in_one_line(error: BaseException) -> str:
    """Return an error's class and the first line of its text."""
    first = next(iter(str(error).splitlines()), "")
    return quotable(f"{type(error).__name__}: {first}")


def is_from_elsewhere(name: str) -> bool:
    """Return whether a name says where a piece lies, or that a program gave it."""
    return bool(PLACE.fullmatch(name)) or name.startswith(_FROM_PYTHON)


def is_given(name: str) -> bool:
    """Return whether a piece is there in the program alone that gave it."""
    return name.startswith(_FROM_PYTHON)


def top_level(module: str) -> str:
    """Return the package that a module is in, or the module itself.

    >>> top_level("acme.nets.small")
    'acme'
    """
    return module.partition(".")[0]


def raised_in(error: BaseException, packages: Collection[str]) -> tuple[str, str]:
    """Return the innermost of some packages that an error passed through, and where; or no text."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        package = top_level(str(frame.f_globals.get("__name__", "")))
        if package in packages:
            code = frame.f_code
            return package, f"{code.co_name}, line {line} of {Path(code.co_filename).name}"
    return "", ""


def place_of(piece: object) -> str:
    """Return ``module:name`` of a function or class, empty where no other process finds it."""
    module, name = getattr(piece, "__module__", ""), getattr(piece, "__qualname__", "")
    if module == "__main__" or not PLACE.fullmatch(f"{module}:{name}"):
        return ""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is piece else ""


def given_name(kind: str, piece: Any) -> str:
    """Return the name of a function or class that a program gives: a digest of its source is in it.

    And of the values it closes over, as they print.
    """
    try:
        around = inspect.getclosurevars(piece).nonlocals if inspect.isfunction(piece) else {}
        told = f"{inspect.getsource(piece)}{sorted(around.items())}"
    except (OSError, TypeError):
        raise ConfigError(
            f"{kind} = {piece!r}: a run records a digest of a function's or class's source, and "
            "this has none that can be read; write it in a file or a notebook's cell"
        ) from None
    digest = hashlib.blake2b(told.encode(), digest_size=6).hexdigest()
    return f"{_FROM_PYTHON}{piece.__name__.strip('<>')}-{digest}"
