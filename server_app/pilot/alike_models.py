"""Alike models: sites grouped by what their models of round 1 make of the same probe rows.

It is FedSCCS's grouping (Talasso et al.) after one round: linear CKA of activations, and Ward's
linkage. The models reach the server in the clear anyway, so it asks nothing more of the sites.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from common import seeds
from common.config import Settings
from common.pilot.settings import PilotSettings
from server_app.clustering import probe
from server_app.clustering.by_models import ProbeSettings, by_activations
from server_app.clustering.clusters import Clusters
from server_app.clustering.probe import Prober
from server_app.pilot.candidates import FEWEST
from server_app.rounds.attempt import Attempt

__all__ = ["AlikeModels"]

_ROUND = 1


class AlikeModels:
    """The groups, once round 1 is over; none where the server reads sums only.

    Args:
        settings: of the run.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.clusters: Clusters | None = None

    def see(self, attempt: Attempt) -> None:
        """Group the sites by the models of an attempt at round 1, if all of them sent one."""
        roster, settings = attempt.federation.roster, self._settings
        plays = settings.of(PilotSettings).pilot and not settings.secagg
        if not plays or attempt.round != _ROUND or len(roster) < FEWEST:
            return
        models = {answer.client: model for answer, _, model in attempt.trained}
        if len(models) < len(roster):
            self.clusters = None
            return
        site, asked = roster.sites[0], settings.of(ProbeSettings)
        inputs = site.inputs
        rows = (probe.read_rows if asked.probe_file else probe.noise)(settings, inputs)
        outputs = settings.learning_task.num_outputs(site.num_classes)
        prober = Prober.of_model(settings, inputs, outputs, asked.cka_layer, rows)
        seen = np.stack([prober.activations(models[client]) for client in range(len(roster))])
        grouping = by_activations(settings)
        rng = seeds.generator(settings.seed, "pilot", "models alike")
        self.clusters = grouping.cluster(seen, grouping.compare(seen), rng).clusters

    def state(self) -> dict[str, Any]:
        """Return what the pilot needs of it after a crash."""
        return {} if self.clusters is None else {"alike-models": self.clusters.labels}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with the groups that were formed before."""
        labels = state.get("alike-models")
        self.clusters = None if labels is None else Clusters(np.asarray(labels))
