"""Model sum: one model's secure sum on its way through the steps, and its line in the record."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from common.identity import SignedKeys
from common.secagg.agreement import Survivors, quorum
from common.secagg.fixed_point import Mean, Scale
from common.secagg.neighbours import wiring
from common.secagg.protocol import Disclosure, Relay
from common.secagg.vectors import Vector
from server_app.record.format import SecaggRecord

__all__ = ["ModelSum"]


@dataclass
class ModelSum:
    """What is known of the sum so far; ``reason`` says why it was given up."""

    model: int
    weights: dict[str, int]
    """Site -> weight sent; 0: its number of rows, which it alone knows. Everybody asked."""
    scale: Scale
    fewest: int
    keys: dict[str, SignedKeys] = field(default_factory=dict)
    relay: Relay | None = None
    dealt: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    """U2: what each sealed for each neighbour."""
    masked: dict[str, Vector] = field(default_factory=dict)
    """U3."""
    agreed: dict[str, SignedKeys] = field(default_factory=dict)
    """Who signed the survivors."""
    told: dict[str, Disclosure] = field(default_factory=dict)
    mean: Mean | None = None
    reason: str = ""

    @property
    def members(self) -> Relay:
        """The members that advertised keys, and their neighbours."""
        assert self.relay is not None
        return self.relay

    @property
    def delivered(self) -> frozenset[str]:
        """U2."""
        return frozenset(self.dealt)

    @property
    def quorum(self) -> int:
        """How many must agree on who is left."""
        return quorum(len(self.weights))

    @property
    def came_to_signing(self) -> bool:
        """Whether members were asked to sign who is left."""
        return len(self.masked) >= self.fewest

    @property
    def is_signed(self) -> bool:
        """Whether so many signed who is left that they may have told shares."""
        return len(self.agreed) >= self.quorum

    @property
    def survivors(self) -> Survivors:
        """U3, with weights."""
        return Survivors({site: self.weights[site] for site in sorted(self.masked)})

    def around(self, site: str, among: Iterable[str]) -> list[str]:
        """Return a site's neighbours among some members, in the order of their ids."""
        return sorted(self.members.links[site].intersection(among))

    @property
    def record(self) -> SecaggRecord:
        """How it went."""
        mean = self.mean
        return SecaggRecord(
            model=self.model,
            asked=len(self.weights),
            advertised=len(self.keys),
            shared=len(self.dealt),
            masked=len(self.masked),
            agreed=len(self.agreed),
            unmasked=len(self.told),
            threshold=wiring(len(self.weights)).threshold,
            sites=tuple(sorted(self.masked)) if mean else (),
            weight=mean.weight if mean else None,
            loss=mean.metrics[0] if mean and mean.metrics else None,
            reason=self.reason,
        )
