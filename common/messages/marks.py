"""Marks: messages of Coterie inside the training messages of another Flower app.

Mods of a ClientApp are called for what the app registered, and every app registers ``train``. So a
message of ours travels as one of its training messages, beside whatever else that holds, and the
mod that the mark names answers it in the app's place.
"""

from dataclasses import dataclass
from typing import Self

from flwr.app import ConfigRecord, RecordDict

from common.messages.keys import MARK, OURS, RECORD
from common.messages.records import Record

__all__ = ["MessageMark", "Opened", "marked"]


@dataclass(frozen=True)
class MessageMark(Record):
    """Whose message this is, on its way to a site and back."""

    kind: str
    """Of the messages that Coterie's own sites answer."""
    release: str
    """What the mod that it is for gives out: of ``RELEASES``."""
    refused: str = ""
    """In an answer: why there is none."""


@dataclass(frozen=True)
class Opened:
    """A content taken apart."""

    mark: MessageMark | None
    """None: the message is the app's own."""
    ours: RecordDict
    """As messages between Coterie's own apps hold it."""
    theirs: RecordDict
    """The app's own records."""

    @classmethod
    def of(cls, content: RecordDict) -> Self:
        """Return a content's parts; :class:`MessageError` for a mark that cannot be read."""
        parts = RecordDict(), RecordDict()
        for key, record in content.items():
            if key != MARK:
                is_ours = key.startswith(OURS)
                parts[not is_ours][key.removeprefix(OURS) if is_ours else key] = record
        mark = content.get(MARK)
        if not isinstance(mark, ConfigRecord):
            return cls(None, *parts)
        return cls(MessageMark.decode(RecordDict({RECORD: mark})), *parts)


def marked(ours: RecordDict, mark: MessageMark, theirs: RecordDict | None = None) -> RecordDict:
    """Return a content of ours under a mark, beside records of the app's own."""
    result = RecordDict({} if theirs is None else dict(theirs))
    for key, record in ours.items():
        result[OURS + key] = record
    result[MARK] = mark.encode()
    return result
