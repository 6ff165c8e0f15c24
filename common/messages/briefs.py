"""Brief: what a server tells a site of a run that the run's config cannot say.

A site reads in the config what it trains and how. What a run's method must see follows from code
that only the server needs to have, so the server says it, once, when it asks who a site is.
"""

import re
from dataclasses import asdict, dataclass, field
from typing import Self

from pydantic import TypeAdapter, ValidationError

from common.errors import MessageError
from common.messages.records import Record, check_range, check_words

__all__ = ["Brief"]

_RUN = re.compile(r"[0-9a-f]{16}")
_MOST_WORDS, _MOST_LETTERS = 64, 64


@dataclass(frozen=True)
class Brief(Record):
    """Which run a site is in, and what of single sites its method sees.

    A site takes the first of a run and holds to it. What it says opens nothing: a kind of message
    that no word calls for is refused, and one that a word calls for needs the releases that the
    site's owner listed, within the bounds of the site's own file, as ever.
    """

    run: str
    """The run's identity, 16 hexadecimal digits: the same when it goes on after an interruption, as
    Flower's id of it is not. By it a site finds what it kept."""
    needs: list[str] = field(default_factory=list)
    """What the method must see of single sites, by the words of ``Kind.shows``."""
    disclosures: list[str] = field(default_factory=list)
    """What the run asks of sites that they release only where their owner names it."""

    def __post_init__(self) -> None:
        """Refuse what names no run, and what is no list of words."""
        if not _RUN.fullmatch(self.run):
            raise MessageError(f"run = {self.run!r}: must be 16 digits from 0 to f")
        for name in ("needs", "disclosures"):
            words = getattr(self, name)
            check_range(f"number of {name}", len(words), 0, _MOST_WORDS)
            for word in words:
                check_words(name, word, _MOST_LETTERS, least=1)

    def to_bytes(self) -> bytes:
        """Return it as a site keeps it."""
        return _ADAPTER.dump_json(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Return what :meth:`to_bytes` wrote; None for a file that was damaged."""
        try:
            return cls(**asdict(_ADAPTER.validate_json(data)))
        except (ValidationError, MessageError):
            return None


_ADAPTER = TypeAdapter(Brief)
