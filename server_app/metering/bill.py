"""Bill: what a round's messages and the server's own work cost, put into the ledger's lines."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from common.messages import Usage
from common.power import ESTIMATED
from server_app.metering.phases import PHASES
from server_app.record.format import ClientLine, RoundLine

__all__ = ["Bill", "Item", "Link"]


@dataclass(frozen=True)
class Link:
    """Which site a node is, and how fast its link."""

    node: int
    site: str
    rate: float
    """In Mbit/s; 0: what the radio profile says."""


@dataclass(frozen=True)
class Item:
    """What one message to a site cost."""

    site: str
    name: str
    """Of the message, as ``clients.jsonl`` has it."""
    phase: str
    bytes_down: int
    bytes_up: int
    radio_seconds: float
    radio_joules: float
    """Sent by the access point and by the site."""
    answered: bool
    usage: Usage | None
    joules: float
    """By the site's machine; NaN: not known."""
    source: str

    def added_to(self, line: ClientLine) -> ClientLine:
        """Return a line of ``clients.jsonl`` with what the message cost."""
        used = self.usage
        return replace(
            line,
            joules=self.joules if math.isfinite(self.joules) else math.nan,
            joules_source=self.source if math.isfinite(self.joules) else "",
            cpu_seconds=used.cpu_seconds if used else math.nan,
            gpu_seconds=used.gpu_seconds if used else math.nan,
            radio_seconds=self.radio_seconds,
            radio_joules=self.radio_joules,
        )


@dataclass(frozen=True)
class Bill:
    """Everything between two records."""

    items: tuple[Item, ...] = ()
    """In the order sent."""
    server: Mapping[str, float] = field(default_factory=dict)
    """Joules of the server's own work by phase; NaN: not known."""
    server_source: str = ESTIMATED

    def added_to(self, line: RoundLine) -> RoundLine:
        """Return a line of ``rounds.jsonl`` with the totals; None: not known."""
        parts = {phase: list(self._parts(phase)) for phase in PHASES}
        sums = {phase: math.fsum(joules for joules, _ in some) for phase, some in parts.items()}
        sources = {phase: sorted({source for _, source in some}) for phase, some in parts.items()}
        return replace(
            line,
            joules=_known(sums),
            joules_source={
                phase: ", ".join(sources[phase]) if math.isfinite(joules) else None
                for phase, joules in sums.items()
            },
            joules_server=_known(self.server),
            radio_seconds=math.fsum(item.radio_seconds for item in self.items),
        )

    def _parts(self, phase: str) -> Iterator[tuple[float, str]]:
        """Yield the joules that a phase consists of, with their sources.

        What is sent to evaluate belongs to ``evaluate``: the papers count neither.
        """
        radio = (item for item in self.items if (item.phase == "evaluate") == (phase == "evaluate"))
        if phase in ("comm", "evaluate"):
            yield from ((item.radio_joules, ESTIMATED) for item in radio)
        if phase != "comm":
            yield self.server.get(phase, math.nan), self.server_source
            for item in self.items:
                # What a site did that did not answer is not known, and not missed: it may be away.
                if item.phase == phase and item.answered:
                    yield item.joules, item.source


def _known(values: Mapping[str, float]) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in values.items()}
