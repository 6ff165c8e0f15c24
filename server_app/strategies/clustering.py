"""Strategies of clustered training by their names: a method each, in Flower's terms.

They add nothing to :class:`FederatedTraining` but the name, so that who reads a ServerApp knows
what it does. Methods whose grouping has no name here are played by that class itself.
"""

from collections.abc import Mapping

from common.config import Settings
from server_app.groupings.by_label_pairs import LabelDistances
from server_app.groupings.by_labels import LabelGroups
from server_app.groupings.by_models import ModelGroups
from server_app.groupings.grouping import Grouping
from server_app.groupings.ot_costs import OtGroups
from server_app.methods import Method
from server_app.record.run_folder import RunFolder
from server_app.rounds.roster import Roster
from server_app.strategies.base import FederatedTraining

__all__ = ["LabelClustering", "ModelClustering", "OtCostProbing", "strategy_of"]


class LabelClustering(FederatedTraining):
    """One-time clustering of the sites' label distributions, before round 1."""


class ModelClustering(FederatedTraining):
    """Hierarchical clustering of models, as by the CKA of their activations, in a given round."""


class OtCostProbing(FederatedTraining):
    """A round whose model probes every site, and groups by what the optimal transport costs."""


_NAMED: Mapping[type[Grouping], type[FederatedTraining]] = {
    LabelGroups: LabelClustering,
    LabelDistances: LabelClustering,
    ModelGroups: ModelClustering,
    OtGroups: OtCostProbing,
}


def strategy_of(
    method: Method, settings: Settings, roster: Roster, folder: RunFolder
) -> FederatedTraining:
    """Return the strategy that plays a method, by the name of what it does."""
    kind = FederatedTraining if method.group is None else _NAMED.get(type(method.group))
    return (kind or FederatedTraining)(method, settings, roster, folder)
