"""Shared memory between a process and those forked from it: pickles whose large bytes lie there."""

import io
import mmap
import pickle
from typing import Any

from common.machine import FORKS

__all__ = ["new_shared", "pickled", "unpickled"]

_SHARED_BYTES = 64 << 20  # for contents, and per worker for replies; the pipe takes the rest
_SHARED_FROM = 4096  # bytes from which sharing is cheaper than the pipe


def new_shared() -> mmap.mmap | None:
    """Return memory that workers forked later share; none where processes are not forked."""
    # Pages that nobody writes to cost nothing.
    return mmap.mmap(-1, _SHARED_BYTES) if FORKS else None


def pickled(value: object, shared: mmap.mmap | None, start: int = 0) -> tuple[bytes, int]:
    """Return a pickle whose large parts lie in shared memory from ``start``, and where they end."""
    buffer = io.BytesIO()
    pickler = _SharedPickler(buffer, shared, start)
    pickler.dump(value)
    return buffer.getvalue(), pickler.end


def unpickled(blob: bytes, shared: mmap.mmap | None) -> Any:
    """Return what :func:`pickled` was given."""
    return _SharedUnpickler(io.BytesIO(blob), shared).load()


class _SharedPickler(pickle.Pickler):
    """Writes large ``bytes`` one after the other into shared memory, as long as they fit."""

    def __init__(self, file: io.BytesIO, shared: mmap.mmap | None, start: int) -> None:
        super().__init__(file, protocol=5)
        self._shared = shared
        self.end = start

    def persistent_id(self, obj: object) -> tuple[int, int] | None:
        """Return where the bytes lie, or None for what stays in the pickle."""
        if type(obj) is not bytes or len(obj) < _SHARED_FROM or self._shared is None:
            return None
        start = self.end
        if start + len(obj) > len(self._shared):
            return None
        self.end = start + len(obj)
        self._shared[start : self.end] = obj
        return start, self.end


class _SharedUnpickler(pickle.Unpickler):
    """Copies those bytes out again, so that the other side may write over them."""

    def __init__(self, file: io.BytesIO, shared: mmap.mmap | None) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: tuple[int, int]) -> bytes:
        """Return the bytes that lie there."""
        assert self._shared is not None
        start, end = pid
        return self._shared[start:end]
