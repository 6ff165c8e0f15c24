"""Keeper of a warm process: starts it, starts it again when it died, and puts it before Flower's.

Flower's SuperExec looks for ``flwr-clientapp`` along ``PATH``; a folder before all others has a
program of that name, which asks the warm process.
"""

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from common.machine import FORKS

_HERE = Path(__file__).parent
_SERVER, _CLIENT = _HERE / "process.py", _HERE / "client.py"
NAME = "flwr-clientapp"
_BACKLOG = 16
_PAUSE = 10.0  # seconds between two starts of one that does not stay


class WarmKeeper:
    """A warm process in a folder that only its owner can enter.

    Attributes:
        env: environment in which Flower's SuperNode finds it.
    """

    def __init__(self, folder: Path, program: str, env: Mapping[str, str]) -> None:
        """Write the program that asks it.

        Args:
            folder: of its own.
            program: path of Flower's, which takes its place where it does not answer.
            env: of the SuperNode.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        path = folder.absolute() / "warm.sock"
        # Held here, so that requests wait while a process starts.
        self._listener = listening(path)
        words = (sys.executable, "-I", "-S", str(_CLIENT), str(path), program)
        shim = folder.absolute() / NAME
        shim.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
        shim.chmod(0o700)
        self.env = {**env, "PATH": os.pathsep.join((str(shim.parent), env["PATH"]))}
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    @property
    def pid(self) -> int | None:
        """Of the process; None if there is none."""
        return self._process.pid if self._process is not None else None

    def keep(self) -> str:
        """Start the process if it does not run; return what happened, empty if it runs."""
        code = None if self._process is None else self._process.poll()
        if self._process is not None and code is None:
            return ""
        if self._process is not None and time.monotonic() - self._began < _PAUSE:
            return ""  # messages find no process and start their own, and say so
        self._close()
        listener = self._listener.fileno()
        words = [sys.executable, str(_SERVER), str(listener)]
        # In a session of its own, so that Ctrl-C is for whoever keeps it; it ends with its input.
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            words,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
            pass_fds=[listener],
            start_new_session=True,
        )
        self._began = time.monotonic()
        return "" if code is None else f"the warm process ended with {code}: started again"

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def __enter__(self) -> Self:
        self.keep()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self._listener.close()
        if self._process is not None:
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@dataclass(frozen=True)
class Cold:
    """What stands in for a warm process where none can be forked: nothing."""

    env: Mapping[str, str]

    def keep(self) -> str:
        """Return nothing: there is nothing that can end."""
        return ""


Warmth = WarmKeeper | Cold


def kept_warm(folder: Path, program: str, env: Mapping[str, str]) -> AbstractContextManager[Warmth]:
    """Return the keeper of a warm process; what stands in for it where none can be forked."""
    return WarmKeeper(folder, program, env) if FORKS else contextlib.nullcontext(Cold(env))


def listening(path: Path) -> socket.socket:
    """Return a socket at a path, however long it is: the system knows only short ones."""
    if sys.platform == "win32":
        raise OSError("Windows' sockets have no paths")
    path.unlink(missing_ok=True)
    before = os.open(".", os.O_RDONLY)
    listener = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(path.parent)
        listener.bind(path.name)
        os.chmod(path.name, 0o600)
    finally:
        os.fchdir(before)
        os.close(before)
    listener.listen(_BACKLOG)
    return listener
