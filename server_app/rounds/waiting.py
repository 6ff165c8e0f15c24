"""Waiting in words: how many replies of a long exchange have come."""

import logging
import time
from collections.abc import Sequence

from flwr.app import Message

from common import messages

log = logging.getLogger("coterie")

__all__ = ["Waiting"]

_SECONDS_BETWEEN = 10.0


class Waiting:
    """Says every ten seconds how many replies to some messages have come; nothing before.

    Args:
        outgoing: of one exchange, all of one round and kind.
    """

    def __init__(self, outgoing: Sequence[Message]) -> None:
        self._asked = len(outgoing)
        self._about = outgoing[0].metadata if outgoing else None
        self._said = time.monotonic()

    def came(self, count: int) -> None:
        """Take note that so many replies have come, of all that were asked."""
        now = time.monotonic()
        if now - self._said < _SECONDS_BETWEEN or self._about is None or count == self._asked:
            return
        self._said = now
        kind = self._about.message_type
        place = f"round {self._about.group_id:>3}  " if self._about.group_id.isdecimal() else ""
        log.info("%s%d of %d sites %s", place, count, self._asked, _done(kind))


def _done(kind: str) -> str:
    if messages.trains(kind):
        return "trained"
    return "evaluated" if kind == messages.EVALUATE else f"answered {kind}"
