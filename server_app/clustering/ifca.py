"""IFCA: several models, of which each site trains the one that fits it best.

Source: Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning"
(2020), Algorithm 1, with the averaging of models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from common.config import Settings
from common.messages import Parameters
from common.model_choice import choices
from server_app.averaging import average
from server_app.clustering.by_models import number_of_clusters
from server_app.clustering.grouping import STRATEGIES, Grouping

__all__ = ["ModelChoice", "averages", "choices"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class ModelChoice(Grouping):
    """Sites grouped by the model that each of them chooses, anew in every round."""

    needs: ClassVar[frozenset[str]] = frozenset({"model-choice"})
    played_by: ClassVar[str] = f"{STRATEGIES}.model_choice:ModelChoices"
    num_models: int
    """k; some may be chosen by nobody."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return what the settings describe; :class:`ConfigError` without a number of models."""
        return cls(number_of_clusters(settings))


def averages(
    models: Sequence[Parameters],
    trained: Sequence[Parameters],
    rows: Sequence[int] | IntArray,
    choice: Sequence[int] | IntArray,
) -> list[Parameters]:
    """Return each model after a round: the mean by rows of what those trained who chose it.

    A model that nobody chose is the same object as before. This is a round on its own; in a run
    the aggregation rule and the server's optimiser stand in the place of the mean.

    Args:
        models: before, k of them.
        trained: by n sites.
        rows: (n,) training rows of each.
        choice: (n,) model of each.
    """
    after = list(models)
    for j in sorted(set(map(int, choice))):
        mine = [site for site, own in enumerate(choice) if own == j]
        weights = np.array([rows[site] for site in mine])
        after[j] = average([trained[site] for site in mine], weights)
    return after
