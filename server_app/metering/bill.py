"""Bill of a round: its messages and the server's own work, as the ledger writes it down."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from common.messages import Usage
from common.power import ESTIMATED
from server_app.record.energy_figures import PHASES

__all__ = ["Bill", "Item"]


@dataclass(frozen=True)
class Item:
    """What one message to a site cost."""

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

    def line(self) -> dict[str, Any]:
        """Return what a line of ``clients.jsonl`` says of it; null: not known."""
        known, used = math.isfinite(self.joules), self.usage
        return {
            "joules": self.joules if known else None,
            "joules_source": self.source if known else None,
            "cpu_seconds": used.cpu_seconds if used else None,
            "gpu_seconds": used.gpu_seconds if used else None,
            "radio_seconds": self.radio_seconds,
            "radio_joules": self.radio_joules,
        }


@dataclass(frozen=True)
class Bill:
    """Everything between two records."""

    items: Mapping[str, tuple[Item, ...]] = field(default_factory=dict)
    """By site, in the order sent."""
    server: Mapping[str, float] = field(default_factory=dict)
    """Joules of the server's own work by phase; NaN: not known."""
    server_source: str = ESTIMATED

    def line(self) -> dict[str, Any]:
        """Return the totals as a line of ``rounds.jsonl`` holds them; null: not known."""
        parts = {phase: list(self._parts(phase)) for phase in PHASES}
        sums = {phase: math.fsum(joules for joules, _ in some) for phase, some in parts.items()}
        sources = {phase: sorted({source for _, source in some}) for phase, some in parts.items()}
        return {
            "joules": _known(sums),
            "joules_source": {
                phase: ", ".join(sources[phase]) if math.isfinite(joules) else None
                for phase, joules in sums.items()
            },
            "joules_server": _known(self.server),
            "radio_seconds": math.fsum(item.radio_seconds for item in self._all()),
        }

    def _parts(self, phase: str) -> Iterator[tuple[float, str]]:
        """Yield the joules that a phase consists of, with their sources.

        What is sent to evaluate belongs to ``evaluate``: the papers count neither.
        """
        radio = (
            item for item in self._all() if (item.phase == "evaluate") == (phase == "evaluate")
        )
        if phase in ("comm", "evaluate"):
            yield from ((item.radio_joules, ESTIMATED) for item in radio)
        if phase != "comm":
            yield self.server.get(phase, math.nan), self.server_source
            for item in self._all():
                # What a site did that did not answer is not known, and not missed: it may be away.
                if item.phase == phase and item.answered:
                    yield item.joules, item.source

    def _all(self) -> Iterator[Item]:
        for items in self.items.values():
            yield from items


def _known(values: Mapping[str, float]) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in values.items()}
