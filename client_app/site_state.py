"""Site state: what outlives a message, such as personal models, the privacy book and keys.

Flower's ``Context.state`` lives in memory and as long as one run. That is enough in a simulation.
A site of its own starts a new process for every message and outlives runs, so it names a folder in
its node-config (``state-dir``), and all is kept there in files that only its owner can read.
"""

import contextlib
import os
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from flwr.app import ConfigRecord, Context, RecordDict

from common import machine
from common.errors import ConfigError

STATE_DIR = "state-dir"  # a site's own say, in its node-config
KEEP_RUNS = "keep-runs"  # likewise
_KEPT_RUNS = 20
_OF_RUNS = re.compile(
    r"brief-|personal-|pilot-|secure-sum-step-|.*-step-\d+\.json$|.*-of-run-\d+\.json$"
)
"""Pieces of which every run has its own: what it told, models, steps it came to, and its counts."""
_RECORD = "kept"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LOCK = ".lock"


class Keeper(Protocol):
    """Named pieces of bytes that survive until they are deleted.

    A name is 1 to 128 letters, digits, dots, - or _. ``write`` returns when the piece is safe: a
    crash at any moment leaves the old piece or the new one whole.
    """

    def read(self, name: str) -> bytes | None:
        """Return a piece; None if there is none."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Keep a piece in place of the one before."""
        ...

    def note(self, name: str, data: bytes) -> None:
        """Keep a piece in place of the one before, at a tenth of a write's time.

        It outlives the process, and a loss of power not always: the old piece may be there then.
        """
        ...

    def delete(self, name: str) -> None:
        """Forget a piece, if there is one."""
        ...

    def locked(self) -> AbstractContextManager[None]:
        """Keep every other process of this site out, from a read to the write that rests on it."""
        ...


def keeper_of(context: Context) -> Keeper:
    """Return where a node keeps things: its ``state-dir`` if it names one, else its context."""
    folder = str(context.node_config.get(STATE_DIR, ""))
    if not folder:
        return ContextKeeper(context.state)
    keep = int(context.node_config.get(KEEP_RUNS, _KEPT_RUNS))
    return replace(FolderKeeper.open(Path(folder)), keep=keep)


@dataclass(frozen=True)
class ContextKeeper:
    """Keeps in memory, in a context's state: until the run ends."""

    state: RecordDict

    def read(self, name: str) -> bytes | None:
        """Return a piece; None if there is none."""
        value = self._record().get(_checked(name))
        return value if isinstance(value, bytes) else None

    def write(self, name: str, data: bytes) -> None:
        """Keep a piece in place of the one before."""
        self._record()[_checked(name)] = data

    def note(self, name: str, data: bytes) -> None:
        """Keep a piece as :meth:`write` does."""
        self.write(name, data)

    def delete(self, name: str) -> None:
        """Forget a piece, if there is one."""
        self._record().pop(_checked(name), None)

    def locked(self) -> AbstractContextManager[None]:
        """Do nothing: the messages of one simulated node are answered one at a time."""
        return contextlib.nullcontext()

    def _record(self) -> ConfigRecord:
        if _RECORD not in self.state.config_records:
            self.state[_RECORD] = ConfigRecord()
        return self.state.config_records[_RECORD]


@dataclass(frozen=True)
class FolderKeeper:
    """Keeps files in a folder that only its owner can read.

    Of pieces that every run has anew it keeps those of the runs written last.
    """

    folder: Path
    keep: int = _KEPT_RUNS
    """How many runs' pieces of each family stay."""

    @classmethod
    def open(cls, folder: Path) -> "FolderKeeper":
        """Return the keeper of a folder, which is made if need be."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{STATE_DIR} = {str(folder)!r}: cannot be made: {error.strerror}; name a folder "
                "that this user may write"
            ) from None
        return cls(folder)

    def read(self, name: str) -> bytes | None:
        """Return a piece; None if there is none."""
        try:
            return (self.folder / _checked(name)).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Keep a piece in place of the one before; on disk when this returns."""
        self._put(name, data, synced=True)
        machine.sync_folder(self.folder)

    def note(self, name: str, data: bytes) -> None:
        """Keep a piece in place of the one before; the system puts it on disk when it likes."""
        self._put(name, data, synced=False)

    def _put(self, name: str, data: bytes, *, synced: bool) -> None:
        target = self.folder / _checked(name)
        if _OF_RUNS.match(name) and not target.exists():
            self._let_go(_family(name))
        temporary = target.with_name(f".{name}.{os.getpid()}.part")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        temporary.replace(target)

    def _let_go(self, family: str) -> None:
        """Delete the oldest pieces of a family, so that there is room for one more."""
        dated = []
        for path in self.folder.iterdir():
            if _OF_RUNS.match(path.name) and _family(path.name) == family:
                with contextlib.suppress(FileNotFoundError):
                    dated.append((path.stat().st_mtime_ns, path))
        for _, path in sorted(dated)[: max(0, len(dated) - self.keep + 1)]:
            path.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Forget a piece, if there is one; gone from disk when this returns."""
        (self.folder / _checked(name)).unlink(missing_ok=True)
        machine.sync_folder(self.folder)

    def locked(self) -> AbstractContextManager[None]:
        """Wait until no other process of this site holds the lock, and hold it."""
        return machine.locked(self.folder / _LOCK)


def _family(name: str) -> str:
    """Return a piece's name without what tells one run's from another's.

    >>> _family("personal-1f3a9c.safetensors") == _family("personal-77aa01.safetensors")
    True
    """
    return re.sub(r"[0-9a-f]{6,}|\d+", "", name)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name of 1 to 128 letters, digits, dots, - or _")
    return name
