"""OT rule: how costs of two sites are computed, and from which on they fit or do not.

Source: Elhussein & Gürsoy.
"""

from dataclasses import dataclass

from common.privacy.disclosures import FOR_COSTS
from server_app.transport.variants import OtSettings
from server_app.transport.verdicts import Thresholds

__all__ = ["OtRule"]


@dataclass(frozen=True)
class OtRule:
    """What it would cost to carry one site's data onto another's, and who fits by that."""

    costs: OtSettings
    thresholds: Thresholds
    num_clusters: int | None
    """0: groups merge up to the detrimental threshold."""
    evidence: str = "clear"
    """What the costs are computed from: a name of ``disclosures.FOR_COSTS``;
    ``gathering.GATHER`` says how it is asked for."""

    @property
    def releases(self) -> tuple[str, ...]:
        """What every site must release."""
        return FOR_COSTS[self.evidence]
