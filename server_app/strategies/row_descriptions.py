"""Row descriptions: sites grouped once by an array that each made of its rows, a model each."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from flwr.serverapp import Grid

from common.config import Settings
from common.errors import RoundError
from common.messages import Parameters
from server_app.clustering.by_rows import RowGroups, nearest_group
from server_app.clustering.clusters import Clusters, check_num_clusters
from server_app.methods import Method
from server_app.record.checkpoint import State
from server_app.record.clusters_format import ClustersFile
from server_app.record.run_folder import RunFolder
from server_app.rounds.exchange import Answer
from server_app.rounds.roster import Roster
from server_app.selection import rules
from server_app.strategies import row_inquiry
from server_app.strategies.base import FederatedTraining

log = logging.getLogger("coterie")

_FEWEST = 2  # sites that can be compared


class RowDescriptions(FederatedTraining):
    """Asks every site for an array, before round 1 or after it, and groups them by these.

    A site whose answer cannot be used is left out before round 1; later it gets a group of its own.
    """

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        assert isinstance(method.group, RowGroups)
        self._group: RowGroups = method.group
        first = replace(method, select=rules.Everybody()) if self._group.about_a_model else method
        super().__init__(first, settings, roster, folder)
        self._grouped_method = method
        self._told: dict[int, np.ndarray] = {}
        """The array of each client that gave one."""
        self._probe: Parameters | None = None
        """The model that the arrays are about."""
        self._formed = ClustersFile()

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Refuse sites that do not release what is asked for; ask them, unless about a model."""
        check_num_clusters(self.settings.num_clusters or 1, len(self.roster))
        self.roster.require(self._group.release, why=f"strategy={self.settings.strategy}")
        if not self._group.about_a_model:
            answers = row_inquiry.class_bases(self.roster, self.settings, grid, timeout)
            bad = {
                answer.client: f"no class bases from {self.roster.names[answer.client]}: "
                f"{answer.verdict}"
                for answer in answers
                if answer.value is None
            }
            if bad:
                self.leave_out(bad)
            told = [answer.value for answer in answers if answer.value is not None]
            self._told = dict(enumerate(told))
            self.clusters = self._grouped(0)

    def before_round(self, server_round: int, grid: Grid, timeout: float) -> float | None:
        """Form the groups once round 1 is over, where its model is what sites are asked about."""
        if server_round == 2:
            self._form_after_round_1(grid, timeout)
        return None

    def after_training(self, grid: Grid, timeout: float) -> None:
        """Form the groups that no later round needed."""
        if not self._told:
            self._form_after_round_1(grid, timeout)

    def state(self) -> State:
        """Return the groups with what they were formed from."""
        return {
            **super().state(),
            "told": {str(client): value for client, value in self._told.items()},
            "probe": {"model": self._probe} if self._probe is not None else {},
            "formed": self._formed.to_json(),
        }

    def restore(self, state: State, grid: Grid, timeout: float) -> None:
        """Go on with the groups formed before, if they were; nobody is asked again."""
        self._told = {int(client): value for client, value in state["told"].items()}
        self._formed = ClustersFile.from_json(state["formed"])
        if state["probe"]:
            self._probe = state["probe"]["model"]
            self.method = self._grouped_method
        super().restore(state, grid, timeout)

    def admit(
        self, newcomers: Roster, server_round: int, grid: Grid, timeout: float
    ) -> Roster | None:
        """Put each newcomer into the group of least mean distance; leave out who does not answer.

        Before there are groups there is nothing to choose.
        """
        if not self._told:
            return super().admit(newcomers, server_round, grid, timeout)
        refusing = [site for site in newcomers.sites if self._group.release not in site.releases]
        for site in refusing:
            log.warning("%s left out: it does not release %r", site.site, self._group.release)
        asked = [n for n, site in enumerate(newcomers.sites) if site not in refusing]
        if not asked:
            return None
        newcomers = newcomers.subset(asked)
        kept = []
        for answer in self._answers(newcomers, grid, timeout):
            name = newcomers.names[answer.client]
            if answer.value is None:
                log.warning("%s joined but is left out: %s", name, answer.verdict)
                continue
            kept.append(answer.client)
            if name not in self.roster.names:
                self._place(answer.value)
        if not kept:
            return None
        admitted = newcomers.subset(kept)
        self._write_clusters(self.roster.joined(admitted).names, self.clusters)
        return admitted

    def _place(self, own: np.ndarray) -> None:
        labels, others = self.clusters.labels, sorted(self._told)
        distances = np.full(len(labels), np.nan)
        compared = self._group.compare([*(self._told[client] for client in others), own])
        distances[others] = compared[-1, :-1]
        self._told[len(labels)] = own
        self.clusters = Clusters(np.append(labels, nearest_group(distances, self.clusters)))

    # The groups --------------------------------------------------------------------------------

    def _answers(self, roster: Roster, grid: Grid, timeout: float) -> list[Answer[np.ndarray]]:
        if self._probe is None:
            return row_inquiry.class_bases(roster, self.settings, grid, timeout)
        everybody = range(len(roster))
        return row_inquiry.embedded_rows(
            roster, everybody, self._probe, self.settings, grid, timeout
        )

    def _form_after_round_1(self, grid: Grid, timeout: float) -> None:
        if not self._group.about_a_model:
            return
        # A copy: training changes the model in place.
        self._probe = {name: value.copy(order="C") for name, value in self.models[0].items()}
        answers = self._answers(self.roster, grid, timeout)
        for answer in answers:
            if answer.value is None:
                name = self.roster.names[answer.client]
                log.warning("%s gets its own group: %s", name, answer.verdict)
        self._told = {each.client: each.value for each in answers if each.value is not None}
        if len(self._told) < _FEWEST:
            raise RoundError(
                f"{len(self._told)} of {len(self.roster)} sites can be compared, two at least are "
                f"needed; {answers[0].verdict}"
            )
        self.regroup(self._grouped(1))
        self.method = self._grouped_method

    def _grouped(self, after_round: int) -> Clusters:
        """Return everybody's clusters, who told nothing alone; write down how they came about."""
        told = sorted(self._told)
        distances = self._group.compare([self._told[client] for client in told])
        grouping = self._group.hierarchy.cut(distances)
        labels = np.full(len(self.roster), -1)
        labels[told] = grouping.clusters.labels
        alone = labels < 0
        labels[alone] = grouping.clusters.k + np.arange(alone.sum())
        clusters = Clusters(labels)
        self._formed = ClustersFile(
            round=after_round,
            strategy=self.settings.strategy,
            metric=self._group.metric,
            num_clusters=clusters.k,
            chosen_by=self._group.hierarchy.chosen_by,
            score=grouping.score,
            scores={str(k): score for k, score in grouping.scores.items()},
        )
        names = [self.roster.names[client] for client in told]
        arrays = {
            "kind": np.array(self._group.metric),
            "sites": np.array(names),
            "descriptors": distances,
            "distances": distances,
            "labels": grouping.clusters.labels,
            "linkage": self._group.hierarchy.merges(distances),
        }
        self.folder.write_arrays("dissimilarity.npz", arrays)
        self._write_clusters(self.roster.names, clusters)
        heights = ", ".join(f"{height:.3g}" for height in arrays["linkage"][-10:, 2])
        log.info("the last merges are at distances %s", heights)
        sizes = sorted(clusters.sizes.tolist(), reverse=True)
        log.info("%d clusters of sizes %s", clusters.k, ", ".join(map(str, sizes)))
        return clusters

    def _write_clusters(self, names: Sequence[str], clusters: Clusters) -> None:
        sites = dict(zip(names, clusters.labels.tolist(), strict=True))
        self.folder.store(replace(self._formed, sites=sites))
