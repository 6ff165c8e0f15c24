"""Model similarity: FedAvg to a given round, then clusters of the models returned, a model each."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import safetensors.numpy
from flwr.serverapp import Grid

from common import seeds
from common.config import Settings
from common.messages import Parameters
from common.tasks.inputs import Inputs
from server_app.clustering import placement, probe
from server_app.clustering.by_models import (
    PROBABILITIES,
    ModelGroups,
    ProbeSettings,
    nearest_columns,
)
from server_app.clustering.clusters import Clusters, ScoredClusters, check_num_clusters
from server_app.clustering.probe import Prober, ProbeRows
from server_app.methods import Method
from server_app.record.checkpoint import State
from server_app.record.clusters_format import ClustersFile, ProbeNote
from server_app.record.run_folder import RunFolder
from server_app.rounds.attempt import Attempt, Update
from server_app.rounds.first_training import admitted, first_trained
from server_app.rounds.memory import flat
from server_app.rounds.probe_inquiry import rows_of_sites
from server_app.rounds.roster import Roster
from server_app.selection import rules
from server_app.strategies.base import FederatedTraining

log = logging.getLogger("coterie")

_SHOWN_MERGES = 10


class ModelSimilarityClustering(FederatedTraining):
    """Everybody trains one model up to a round, whose updates then decide the clusters.

    That round is averaged within the clusters already: Talasso et al., Algorithm 1, cluster twice
    and average it under the old labels. Averages are over who took part, where Algorithm 1 divides
    by the rows of the whole cluster.
    """

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        super().__init__(replace(method, select=rules.Everybody()), settings, roster, folder)
        assert isinstance(method.group, ModelGroups)
        self._grouped_method = method
        self._group: ModelGroups = method.group
        self._prober: Prober | None = None
        self._descriptors: dict[int, np.ndarray] = {}
        self._sites_at_start = 0
        self._shared: Parameters | None = None
        """What everybody trained in the round of the first grouping."""

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Refuse what cannot be grouped, and make the probe; sites may be asked for its rows."""
        check_num_clusters(self.settings.num_clusters or 1, len(self.roster))
        self._sites_at_start = len(self.roster)
        if self._group.probes:
            site = self.roster.sites[0]
            inputs = site.inputs
            rows = self._probe_rows(inputs, grid, timeout)
            run = self.settings, inputs, self.settings.learning_task.num_outputs(site.num_classes)
            self._prober = Prober.of_model(*run, self._layer, rows)

    def state(self) -> State:
        """Return the clusters with the models that they were formed from."""
        clustered = self._shared is not None
        return {
            **super().state(),
            "descriptors": {str(client): value for client, value in self._descriptors.items()},
            "shared": {"model": self._shared} if clustered else {},
            "sites-at-start": self._sites_at_start,
        }

    def restore(self, state: State, grid: Grid, timeout: float) -> None:
        """Go on with the clusters formed before; a probe of sites' rows is asked for again."""
        roster, self.roster = self.roster, self.roster.first(state["sites-at-start"])
        self.prepare(grid, timeout)
        self.roster = roster
        self._descriptors = {int(name): value for name, value in state["descriptors"].items()}
        if state["shared"]:
            self._shared = state["shared"]["model"]
            self.method = self._grouped_method
        super().restore(state, grid, timeout)

    def needs_updates(self, server_round: int) -> bool:
        """Return whether the sites are grouped in this round, by the model that each returns."""
        return self._group.is_due(server_round)

    def before_average(self, attempt: Attempt) -> None:
        """Form the clusters in the rounds in which that is due."""
        server_round = attempt.round
        if not self._group.is_due(server_round):
            return
        self._describe(attempt.trained)
        descriptors = self._described(len(self.roster))
        distances = self._group.compare(descriptors)
        rng = seeds.generator(self.settings.seed, "clustering", server_round)
        grouping = self._group.cluster(descriptors, distances, rng)
        if server_round > self._group.at_round:
            clusters = placement.matched(self.clusters, grouping.clusters)
            attempt.drift = placement.share_moved(self.clusters, clusters)
            grouping = replace(grouping, clusters=clusters)
        if self._group.linkage is not None:
            _say_heights(self._group.linkage(distances))
        self._write(server_round, grouping, distances, descriptors)
        self.regroup(grouping.clusters)
        sizes = sorted(self.clusters.sizes.tolist(), reverse=True)
        log.info("%d clusters of sizes %s", self.clusters.k, ", ".join(map(str, sizes)))

    def after_round(self, server_round: int) -> None:
        """Let the method's own rule choose who trains, once there are clusters."""
        super().after_round(server_round)
        if server_round >= self._group.at_round:
            self.method = self._grouped_method

    def admit(
        self, newcomers: Roster, server_round: int, grid: Grid, timeout: float
    ) -> Roster | None:
        """Put each newcomer into the cluster it is nearest to; leave out who does not answer.

        It is described as the others were: by what it makes of the model that all of them trained
        in the round of the clustering. Before that round there is nothing to choose.
        """
        if self._shared is None:
            return super().admit(newcomers, server_round, grid, timeout)
        known = self.roster.names
        answers = first_trained(newcomers, self._shared, server_round, grid, timeout)
        judged, past = self.norms.judged(self.memory.norms, answers, [self._shared])
        self.memory = replace(self.memory, norms=past)
        return admitted(newcomers, known, judged, self._place)

    def _place(self, trained: Parameters) -> None:
        assert self._shared is not None
        labels = self.clusters.labels
        own = self._descriptors[len(labels)] = self._descriptor(trained, self._shared)
        if self._group.place is not None:
            cluster = self._group.place(self._described(len(labels)), self.clusters, own)
        else:
            distances = self._group.compare(self._described(len(labels) + 1))
            cluster = nearest_columns(distances, labels)
        self.clusters = Clusters(np.append(labels, cluster))

    def _described(self, n: int) -> np.ndarray:
        return np.array([self._descriptors[client] for client in range(n)])

    # Describing --------------------------------------------------------------------------------

    def _describe(self, updates: Sequence[Update]) -> None:
        """Describe the model of every site: a new one, the last known, or the one it would get."""
        routes = self.routes
        for answer, _, trained in updates:
            sent = self.models[answer.model]
            self._descriptors[answer.client] = self._descriptor(trained, sent)
        for client in set(range(len(self.roster))) - self._descriptors.keys():
            log.warning("%s returned no model yet: its last one counts", self.roster.names[client])
            model = self.models[routes[client]]
            self._descriptors[client] = self._descriptor(model, model)

    def _descriptor(self, trained: Parameters, sent: Parameters) -> np.ndarray:
        if self._group.describe == "weights":
            return flat({name: trained[name] for name in trained if name.startswith("output.")})
        if self._group.describe == "all-weights":
            return flat(trained)
        if self._group.describe == "update":
            change: np.ndarray = flat(trained) - flat(sent)
            return change
        assert self._prober is not None
        if self._group.describe == "predictions":
            return self._prober.predictions(trained)
        return self._prober.activations(trained)

    # The probe ---------------------------------------------------------------------------------

    @property
    def _layer(self) -> str:
        layer = self.settings.of(ProbeSettings).cka_layer
        return layer if self._group.describe == "activations" else PROBABILITIES

    def _probe_rows(self, inputs: Inputs, grid: Grid, timeout: float) -> ProbeRows:
        asked = self.settings.of(ProbeSettings)
        if asked.cka_probe == "client-rows":
            return rows_of_sites(self.roster, asked.cka_probe_size, grid, timeout)
        make = probe.read_rows if asked.probe_file else probe.noise
        return make(self.settings, inputs)

    # The record --------------------------------------------------------------------------------

    def _write(
        self,
        server_round: int,
        grouping: ScoredClusters,
        distances: np.ndarray,
        descriptors: np.ndarray,
    ) -> None:
        names, group = self.roster.names, self._group
        labels = grouping.clusters.labels
        record = ClustersFile(
            round=server_round,
            strategy=self.settings.strategy,
            metric=group.metric,
            num_clusters=grouping.clusters.k,
            chosen_by=group.chosen_by,
            score=grouping.score,
            scores={str(k): score for k, score in grouping.scores.items()},
            sites=dict(zip(names, labels.tolist(), strict=True)),
        )
        arrays = {
            "kind": np.array(group.describe),
            "sites": np.array(names),
            "descriptors": 1.0 - distances,
            "distances": distances,
            "labels": labels,
        }
        if group.linkage is not None:
            arrays["linkage"] = group.linkage(distances)
        if self._prober is not None:
            record = self._with_probe(record, self._prober.probe, descriptors)
        self.folder.write_arrays("dissimilarity.npz", arrays)
        self.folder.store(record)
        if server_round == group.at_round:
            self._shared = self.models[0]
            shared = {name: np.asarray(v, order="C") for name, v in self._shared.items()}
            self.folder.write("models/shared.safetensors", safetensors.numpy.save(shared))

    def _with_probe(
        self, record: ClustersFile, used: ProbeRows, descriptors: np.ndarray
    ) -> ClustersFile:
        """Keep what a site that comes later is compared on; rows of sites are not kept."""
        arrays = {"activations": descriptors, "layer": np.array(self._layer)}
        disclosure = None
        if used.source == "client-rows":
            disclosure = (
                f"{len(used.rows)} training rows of the sites (inputs without labels) were sent "
                "to the server as the probe"
            )
        else:
            arrays["rows"] = used.rows
        self.folder.write_arrays("probe.npz", arrays)
        probe = ProbeNote(used.source, len(used.rows), self._layer)
        return replace(record, probe=probe, disclosure=disclosure)


def _say_heights(merges: np.ndarray) -> None:
    """Log what a threshold is set by: the distances of the last merges."""
    heights = ", ".join(f"{height:.3g}" for height in merges[-_SHOWN_MERGES:, 2])
    log.info("the last merges are at distances %s", heights or "of nobody")
