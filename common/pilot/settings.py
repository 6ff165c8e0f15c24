"""Settings of the pilot, as server and sites read them."""

from typing import TYPE_CHECKING

from pydantic import Field

from common.data.datasets import has_masks
from common.plugins import PieceSettings

if TYPE_CHECKING:
    from common.config import Settings

__all__ = ["PLAYED_BY", "PilotSettings"]

PLAYED_BY = "ot-groups"
"""The strategy that plays it."""


class PilotSettings(PieceSettings):
    """Whether a few cross-validated rounds are played after the costs, and how many."""

    pilot: bool = Field(
        False,
        description="ot-groups: play a few rounds on folds of the training rows and say who gains; "
        "coterie precheck does unless told not to",
    )
    pilot_folds: int = Field(
        3, ge=2, le=20, description="pilot: parts of each site's training rows, each held out once"
    )
    pilot_rounds: int = Field(
        5, ge=1, le=100, description="pilot: rounds before the first look; as many again if unclear"
    )
    pilot_minutes: float = Field(
        0,
        ge=0,
        description="pilot: begin no round that would end later; 0: take as long as needed",
    )

    def check(self, settings: "Settings") -> None:
        """Refuse what the pilot cannot play."""
        if not self.pilot:
            return
        if settings.strategy != PLAYED_BY:
            raise ValueError(
                f"pilot = True: strategy = {settings.strategy} does not play it; use "
                f"strategy={PLAYED_BY}, as coterie precheck does"
            )
        if settings.objective != "fedavg":
            raise ValueError(
                f"objective = {settings.objective}: the pilot plays training alone, FedAvg and "
                "Ditto itself; leave objective out, or set pilot=false"
            )
        if settings.secagg or settings.update_privacy != "none":
            key = "secagg" if settings.secagg else "update-privacy"
            raise ValueError(
                f"{key} = {getattr(settings, key.replace('-', '_'))}: the pilot sends each site's "
                "models as they are; set pilot=false"
            )
        if settings.task == "regression" or has_masks(settings.dataset):
            what = f"dataset = {settings.dataset!r}, task = {settings.task}"
            raise ValueError(
                f"{what}: there are no classes, and the pilot counts rows classified right; set "
                "pilot=false"
            )
