"""FedAvg to a given round, then clusters of the models that the sites return, and a model each."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import safetensors.numpy
from flwr.app import Message
from flwr.serverapp import Grid

from common import messages, models, seeds
from common.config import Settings
from common.errors import MessageError, RoundError
from common.messages import Order, Parameters, ProbeReport, ProbeRequest
from server_app.aggregation.mean import flat
from server_app.clustering import placement, probe
from server_app.clustering.algorithms import Clusters, ScoredClusters
from server_app.clustering.by_models import PROBABILITIES, ModelGroups, nearest_columns
from server_app.clustering.clusters import check_num_clusters
from server_app.clustering.probe import Prober, ProbeRows
from server_app.methods import Method
from server_app.record.checkpoint import State
from server_app.record.ledger import Trained
from server_app.record.run_folder import RunFolder
from server_app.rounds.exchange import OK, Answer, Exchange
from server_app.rounds.guard import Asked, Template, inspect_training, refuse_error
from server_app.rounds.roster import Roster
from server_app.selection import rules
from server_app.strategies.base import FederatedTraining

log = logging.getLogger("coterie")


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
            network = models.blank(self.settings.model, tuple(site.input_shape), site.num_classes)
            rows = self._probe_rows(tuple(site.input_shape), grid, timeout)
            self._prober = Prober(network, self._layer, rows)

    def state(self) -> State:
        """Return the clusters with the models that they were formed from."""
        clustered = self._shared is not None
        return {
            **super().state(),
            "rule": self._grouped_method.select.state(),
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
        self._grouped_method.select.restore(state["rule"])
        if state["shared"]:
            self._shared = state["shared"]["model"]
            self.method = self._grouped_method
        super().restore(state, grid, timeout)

    def needs_updates(self, server_round: int) -> bool:
        """Return whether the sites are grouped in this round, by the model that each returns."""
        return self._group.is_due(server_round)

    def before_average(self, server_round: int) -> None:
        """Form the clusters in the rounds in which that is due."""
        if not self._group.is_due(server_round):
            return
        self._describe()
        descriptors = self._described(len(self.roster))
        distances = self._group.compare(descriptors)
        rng = seeds.generator(self.settings.seed, "clustering", server_round)
        grouping = self._group.cluster(distances, rng)
        if server_round > self._group.at_round:
            clusters = placement.matched(self.clusters, grouping.clusters)
            self._attempt.drift = placement.share_moved(self.clusters, clusters)
            grouping = replace(grouping, clusters=clusters)
        self._write(server_round, grouping, distances, descriptors)
        self.regroup(grouping.clusters)
        sizes = sorted(self.clusters.sizes.tolist(), reverse=True)
        log.info("%d clusters of sizes %s", self.clusters.k, ", ".join(map(str, sizes)))

    def after_round(self, server_round: int) -> None:
        """Let the method's own rule choose who trains, once there are clusters."""
        super().after_round(server_round)
        if server_round >= self._group.at_round:
            self.method = self._grouped_method

    def admit(self, newcomers: Roster, grid: Grid, timeout: float) -> Roster | None:
        """Put each newcomer into the cluster it is nearest to; leave out who does not answer.

        It is described as the others were: by what it makes of the model that all of them trained
        in the round of the clustering. Before that round there is nothing to choose.
        """
        if self._shared is None:
            return super().admit(newcomers, grid, timeout)
        known, kept = set(self.roster.names), []
        for answer in self._first_models(newcomers, grid, timeout):
            name = newcomers.names[answer.client]
            if answer.value is None:
                log.warning("%s joined but is left out: %s", name, answer.verdict)
                continue
            kept.append(answer.client)
            if name not in known:
                self._place(answer.value[1])
        if not kept:
            return None
        return Roster(
            tuple(newcomers.sites[client] for client in kept),
            tuple(newcomers.nodes[client] for client in kept),
        )

    def _first_models(self, newcomers: Roster, grid: Grid, timeout: float) -> list[Answer[Trained]]:
        assert self._shared is not None
        template = Template.of(self._shared)
        exchange = Exchange.with_models(
            newcomers,
            messages.TRAIN,
            [self._shared],
            dict.fromkeys(range(len(newcomers)), 0),
            round_number=self._attempt.round + 1,
            attempt=1,
        )
        replies = grid.send_and_receive(exchange.outgoing(), timeout=timeout)
        return exchange.answers(
            replies, lambda reply, asked: inspect_training(reply, asked, template)
        )

    def _place(self, trained: Parameters) -> None:
        assert self._shared is not None
        labels = self.clusters.labels
        self._descriptors[len(labels)] = self._descriptor(trained, self._shared)
        # By columns, whatever grouped the others: Talasso eq. 6.
        distances = self._group.compare(self._described(len(labels) + 1))
        self.clusters = Clusters(np.append(labels, nearest_columns(distances, labels)))

    def _described(self, n: int) -> np.ndarray:
        return np.array([self._descriptors[client] for client in range(n)])

    # Describing --------------------------------------------------------------------------------

    def _describe(self) -> None:
        """Describe the model of every site: a new one, the last known, or the one it would get."""
        routes = self.routes
        for answer, _, trained in self._attempt.trained:
            sent = self.models[answer.model]
            self._descriptors[answer.client] = self._descriptor(trained, sent)
        for client in set(range(len(self.roster))) - self._descriptors.keys():
            log.warning("%s returned no model yet: its last one counts", self.roster.names[client])
            model = self.models[routes[client]]
            self._descriptors[client] = self._descriptor(model, model)

    def _descriptor(self, trained: Parameters, sent: Parameters) -> np.ndarray:
        if self._group.describe == "weights":
            return flat({name: trained[name] for name in trained if name.startswith("output.")})
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
        return self.settings.cka_layer if self._group.describe == "activations" else PROBABILITIES

    def _probe_rows(self, input_shape: tuple[int, ...], grid: Grid, timeout: float) -> ProbeRows:
        if self.settings.cka_probe == "client-rows":
            return self._ask_for_rows(grid, timeout)
        make = probe.read_rows if self.settings.probe_file else probe.noise
        return make(self.settings, input_shape)

    def _ask_for_rows(self, grid: Grid, timeout: float) -> ProbeRows:
        """Return rows of every site, which is what the paper does and what discloses them."""
        refusing = [s.site for s in self.roster.sites if "probe-rows" not in s.releases]
        if refusing:
            raise RoundError(
                f"cka-probe=client-rows needs 'probe-rows', which {', '.join(refusing)} "
                "did not opt in to release; use cka-probe=noise or a probe-file"
            )
        exchange = Exchange(
            self.roster,
            messages.PROBE_ROWS,
            contents=[messages.content(ProbeRequest(self.settings.cka_probe_size))],
            orders=[Order(round=0, attempt=1, model=0)],
            models=dict.fromkeys(range(len(self.roster)), 0),
        )
        replies = grid.send_and_receive(exchange.outgoing(), timeout=timeout)
        answers = exchange.answers(replies, self._inspect_rows)
        bad = [answer for answer in answers if answer.verdict != OK]
        if bad:
            name = self.roster.names[bad[0].client]
            raise RoundError(f"no probe rows from {name}: {bad[0].verdict}")
        log.warning("cka-probe=client-rows: every site disclosed rows of its data to the server")
        rows = [answer.value for answer in answers if answer.value is not None]
        return ProbeRows(np.concatenate(rows), "client-rows")

    def _inspect_rows(self, reply: Message, asked: Asked) -> np.ndarray:
        refuse_error(reply)
        report = ProbeReport.decode(reply.content)
        if report.site != asked.site.site:
            raise MessageError(f"signed {report.site!r}")
        rows = messages.decode_arrays(messages.arrays_of(reply.content)).get(messages.PROBE)
        expected = min(self.settings.cka_probe_size, asked.site.num_examples)
        shape = (expected, *asked.site.input_shape)
        if rows is None or rows.shape != shape or rows.dtype != np.float32:
            raise MessageError(f"no float32 rows of shape {shape}")
        if not np.isfinite(rows).all():
            raise MessageError("the rows hold NaN or inf")
        return rows

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
        record: dict[str, Any] = {
            "round": server_round,
            "strategy": self.settings.strategy,
            "metric": group.metric,
            "num_clusters": grouping.clusters.k,
            "chosen_by": group.chosen_by,
            "score": grouping.score,
            "scores": {str(k): score for k, score in grouping.scores.items()},
            "sites": dict(zip(names, labels.tolist(), strict=True)),
        }
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
            record |= self._write_probe(self._prober.probe, descriptors)
        self.folder.write_arrays("dissimilarity.npz", arrays)
        self.folder.write_json("clusters.json", record)
        if server_round == group.at_round:
            self._shared = self.models[0]
            shared = {name: np.asarray(v, order="C") for name, v in self._shared.items()}
            self.folder.write("models/shared.safetensors", safetensors.numpy.save(shared))

    def _write_probe(self, used: ProbeRows, descriptors: np.ndarray) -> dict[str, Any]:
        """Keep what a site that comes later is compared on; rows of sites are not kept."""
        arrays = {"activations": descriptors, "layer": np.array(self._layer)}
        record: dict[str, Any] = {
            "probe": {"source": used.source, "rows": len(used.rows), "layer": self._layer}
        }
        if used.source == "client-rows":
            record["disclosure"] = (
                f"{len(used.rows)} training rows of the sites (inputs without labels) were sent "
                "to the server as the probe"
            )
        else:
            arrays["rows"] = used.rows
        self.folder.write_arrays("probe.npz", arrays)
        return record
