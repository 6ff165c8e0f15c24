"""Parent process: a process that ends with the one that started it, however that ends."""

import ctypes
import signal
import sys

__all__ = ["end_with_parent"]

_PR_SET_PDEATHSIG = 1
_C = ctypes.CDLL(None)


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Let the system send this process a signal when its parent ends; Linux alone can.

    Whoever waits for the rest of a message from a parent that was killed would wait for ever: it
    holds a copy of the other end of its own pipe.
    """
    if sys.platform == "linux":
        _C.prctl(_PR_SET_PDEATHSIG, number)
