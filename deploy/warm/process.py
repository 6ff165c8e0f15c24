"""Warm process of a site: torch and Flower are imported once, and every message gets a fork of it.

    python process.py LISTENER

Flower's SuperNode starts a program, ``flwr-clientapp``, for each message. ``client.py`` stands in
its place and asks here for a process that has imported all that it needs already. The process that
is asked runs nothing of an app itself, so that nothing can stay in it from one message to the next;
a fork ends with its message. Coterie's own app, which is installed here, is imported, too, where
all of it lies below one name: in a checkout it would hide modules of another Flower app.

LISTENER is the number of an open socket. The process ends when its standard input does, which is a
pipe that whoever started it holds.
"""

import gc
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import FrameType

assert sys.platform != "win32"  # where keeping.py starts none

PRELOADED = (
    *("flwr.supernode.cli", "torch", "pydantic.dataclasses", "scipy.optimize", "safetensors.numpy"),
    *("PIL.Image", "cloudpickle", "pyarrow.compute", "pyarrow.csv", "pyarrow.parquet"),
    "cryptography.hazmat.primitives.asymmetric.x25519",
    "cryptography.hazmat.primitives.ciphers.aead",
)
"""Modules of other packages that a site's app imports."""
HEADER = 4
"""Bytes of a request's length, before it; the most significant comes first."""
FORKED = b"1"
"""The answer to a request: a process is at work on it."""
_LONGEST = 1 << 16  # bytes of a request
_PATIENCE = 5.0  # seconds for a request to come


@dataclass(frozen=True)
class Request:
    """What a message's process is to be: its words, its folder and its three standard streams."""

    words: Sequence[str]
    folder: str
    streams: Sequence[int]

    @classmethod
    def read(cls, connection: socket.socket) -> "Request":
        """Return the request that comes over a connection; :class:`ValueError` for another."""
        data, streams, _, _ = socket.recv_fds(connection, _LONGEST, 3)
        try:
            size = int.from_bytes(data[:HEADER])
            while data and len(data) < HEADER + size <= _LONGEST:
                more = connection.recv(HEADER + size - len(data))
                data = data + more if more else b""
            parts = data[HEADER:].decode().split("\0")
            if len(data) != HEADER + size or len(streams) != 3 or len(parts) < 2:
                raise ValueError("no request")
        except ValueError:
            _close(streams)
            raise
        return cls(parts[1:], parts[0], streams)

    def become(self) -> None:
        """Make this process, a fork, what was asked for."""
        for number, stream in enumerate(self.streams):
            os.dup2(stream, number)
        _close(self.streams)
        os.chdir(self.folder)
        sys.argv[:] = self.words
        numpy = sys.modules.get("numpy")
        if numpy is not None:  # forks would all draw the same; Python's own generator sees to it
            numpy.random.seed()


def _close(streams: Sequence[int]) -> None:
    for stream in streams:
        os.close(stream)


def serve(listener: socket.socket, import_all: Callable[[], None]) -> bool:
    """Fork a process for each request at a socket, until standard input ends.

    Args:
        listener: of a path in a folder that only its owner can enter.
        import_all: imports what forks need; requests wait meanwhile.

    Returns:
        True in a fork, which has become what was asked for; False at the end.
    """
    with listener, selectors.DefaultSelector() as selector:
        import_all()
        gc.collect()
        gc.freeze()  # so that forks leave its pages alone
        signal.signal(signal.SIGCHLD, _bury)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if 0 in ready and not os.read(0, 1):
                return False
            if listener.fileno() in ready and _forked(listener):
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return True


def _forked(listener: socket.socket) -> bool:
    """Answer one request and return True in the process that was made for it."""
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(_PATIENCE)
        try:
            request = Request.read(connection)
        except (OSError, ValueError) as error:
            print(f"WARNING : warm process: {error or type(error).__name__}", file=sys.stderr)
            return False
        try:
            number = os.fork()
        except OSError as error:  # no answer: who asked starts a process of its own
            print(f"WARNING : warm process: cannot fork: {error}", file=sys.stderr)
            number = -1
        if number == 0:
            listener.close()
            request.become()
            return True
        _close(request.streams)
        if number > 0:
            with suppress(OSError):
                connection.sendall(FORKED)
    return False


def _bury(_: int, __: FrameType | None) -> None:
    """Take note of processes that ended; whoever was killed leaves a line."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if os.WIFSIGNALED(ended[1]):
                name = signal.Signals(os.WTERMSIG(ended[1])).name
                print(f"WARNING : process of a message ended by {name}", file=sys.stderr)


def main() -> None:
    """Serve; in a fork, be Flower's program."""
    own_folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != own_folder]

    def import_all() -> None:
        for name in PRELOADED:
            import_module(name)
        if find_spec("coterie.client_app") is not None:
            import_module("coterie.client_app.app")

    if serve(socket.socket(fileno=int(sys.argv[1])), import_all):
        program: Callable[[], None] = import_module("flwr.supernode.cli").flwr_clientapp
        program()  # which ends as Flower's own script for it does


if __name__ == "__main__":
    main()
