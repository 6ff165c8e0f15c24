"""Row descriptions: what sites say of their rows where they are grouped by these alone."""

from dataclasses import dataclass

from common.errors import MessageError
from common.messages.records import MOST_SECONDS, Record, check_range

__all__ = ["BASES", "EMBEDDED", "BasesReport", "EmbeddedReport"]

BASES = "bases"
"""Name of the array of leading directions, (features, columns) float32."""
EMBEDDED = "embedded"
"""Name of the array of embedded rows, (rows, width) float32."""

_MOST_DIRECTIONS = 10_000


@dataclass(frozen=True)
class BasesReport(Record):
    """A site's answer to ``query.class_bases``; the directions stand beside it, class by class."""

    site: str
    classes: list[int]
    """That the site has rows of, ascending."""
    directions: list[int]
    """Columns of each of them, from 1."""

    def __post_init__(self) -> None:
        """Refuse classes out of order, or without a direction."""
        if len(self.classes) != len(self.directions) or not self.classes:
            raise MessageError(f"classes {self.classes} with directions {self.directions}")
        if sorted(set(self.classes)) != self.classes:
            raise MessageError(f"classes {self.classes}: not ascending")
        for number in self.directions:
            check_range("directions of a class", number, 1, _MOST_DIRECTIONS)


@dataclass(frozen=True)
class EmbeddedReport(Record):
    """A site's answer to ``query.embedded_rows``; the rows stand beside it."""

    site: str
    round: int
    attempt: int
    model: int
    seconds: float

    def __post_init__(self) -> None:
        """Refuse a time that nothing takes."""
        check_range("seconds", self.seconds, 0, MOST_SECONDS)
