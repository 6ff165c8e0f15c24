"""Shared parts: objectives whose models are common in part, and in part each site's own.

Where nothing but the parts differ, the training is FedAvg's and stands there.
"""

from typing import TYPE_CHECKING

from pydantic import Field

from common.objectives.contract import (
    Fit,
    Learned,
    ObjectiveSettings,
    Parameters,
    Phase,
    head_of,
)

if TYPE_CHECKING:
    from common.config import Training


class FedRepSettings(ObjectiveSettings):
    """How long the head is trained before the body."""

    head_epochs: int = Field(
        1, ge=1, description="fedrep: passes that train the head, before local-epochs for the body"
    )

    def passes(self, epochs: int) -> int:
        """Return those of the head, and then of the body."""
        return self.head_epochs + epochs


def fedrep(
    received: Parameters, personal: Parameters | None, fit: Fit, settings: "Training"
) -> Learned:
    """``head-epochs`` on the head, then ``local-epochs`` on the body: Collins et al. 2021, Alg. 1.

    Each with the other standing still, and from a momentum of 0.
    """
    head = head_of(received)
    epochs = settings.of(FedRepSettings).head_epochs
    first = fit(received, phase=Phase(frozenset(received) - head, epochs))
    then = fit(first.parameters, phase=Phase(head))
    return Learned(then.parameters, None, then.loss, first.seconds + then.seconds)


def fedbabu(
    received: Parameters, personal: Parameters | None, fit: Fit, settings: "Training"
) -> Learned:
    """SGD on the body; the head stays as the run's seed made it: Oh et al. 2022, Algorithm 1."""
    fitted = fit(received, phase=Phase(head_of(received)))
    return Learned(fitted.parameters, None, fitted.loss, fitted.seconds)
