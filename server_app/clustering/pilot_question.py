"""Pilot question: what a pilot without costs asks of the sites before round 1, which is nothing."""

from dataclasses import dataclass
from typing import ClassVar

from server_app.clustering.grouping import STRATEGIES, Description

__all__ = ["PilotQuestion"]


@dataclass(frozen=True)
class PilotQuestion(Description):
    """Who gains, asked after the last round by playing on; no site is described for it."""

    needs: frozenset[str] = frozenset()

    played_by: ClassVar[str] = f"{STRATEGIES}.piloted:PilotedTraining"
