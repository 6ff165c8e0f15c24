"""Client of the warm process: ``python -I -S client.py SOCKET PROGRAM WORD...``.

It stands in place of Flower's ``flwr-clientapp``, asks the warm process for one with the same words
and ends. Where no warm process answers it says so and becomes PROGRAM itself, which imports all it
needs anew. It imports little, since it is started for every message.
"""

import os
import socket
import sys

assert sys.platform != "win32"  # where keeping.py starts none

_PATIENCE = 20.0  # seconds; a task that has not begun after 30 is given to another process
_HEADER, _FORKED = 4, b"1"  # as in process.py, which this program must not import


def ask(path: str, words: list[str]) -> None:
    """Let the warm process at a socket go to work; :class:`OSError` if it does not."""
    data = "\0".join((os.getcwd(), *words)).encode()
    before = os.getcwd()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_PATIENCE)
        folder, name = os.path.split(path)
        os.chdir(folder)  # the system knows only short paths of sockets
        try:
            connection.connect(name)
        finally:
            os.chdir(before)
        socket.send_fds(connection, [len(data).to_bytes(_HEADER) + data], [0, 1, 2])
        if connection.recv(1) != _FORKED:
            raise OSError("it began nothing")


def main() -> None:
    """Ask for a process; without one, be it."""
    path, program, *words = sys.argv[1:]
    try:
        ask(path, [program, *words])
    except OSError as error:
        print(
            f"WARNING : no warm process ({error}): this message's imports everything anew",
            file=sys.stderr,
            flush=True,
        )
        os.execv(program, [program, *words])  # noqa: S606 - Flower's own program


if __name__ == "__main__":
    main()
