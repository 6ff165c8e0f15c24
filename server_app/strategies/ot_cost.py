"""OT-cost groups: a FedAvg round whose model probes every site, then a model per cheap group."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import safetensors.numpy
from flwr.serverapp import Grid

from common.config import Settings
from common.errors import RoundError
from common.messages import Parameters
from server_app.clustering.algorithms import Clusters
from server_app.methods import Method
from server_app.pilot.after_costs import play_after_costs
from server_app.record.checkpoint import State
from server_app.record.clusters_format import ClustersFile
from server_app.record.run_folder import RunFolder
from server_app.rounds.roster import Roster
from server_app.selection import rules
from server_app.strategies.piloted import BeforePilot
from server_app.transport.gathering import GATHER, gathered
from server_app.transport.groups import OtGroups
from server_app.transport.inquiry import Inquiry
from server_app.transport.pair_costs import evidence_costs
from server_app.transport.precheck import Precheck, nearest_group, prechecked
from server_app.transport.verdicts import symmetric

log = logging.getLogger("coterie")

PROBE_FILE = "models/shared.safetensors"


class OtCostGroups(BeforePilot):
    """Everybody trains one model in round 1; what it makes of their rows decides the groups.

    With one round this is the precheck: costs, verdicts and groups, and no further training.
    """

    def __init__(
        self, method: Method, settings: Settings, roster: Roster, folder: RunFolder
    ) -> None:
        super().__init__(replace(method, select=rules.Everybody()), settings, roster, folder)
        assert isinstance(method.group, OtGroups)
        self._grouped_method = method
        self._group: OtGroups = method.group
        self._probe: Parameters | None = None

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Refuse sites that do not release what costs are computed from, before round 1."""
        for release in self._group.releases:
            self.roster.require(release, why=f"strategy={self.settings.strategy}")

    def state(self) -> State:
        """Return the groups with the probe that they were formed on."""
        return {
            **super().state(),
            "probe": {"model": self._probe} if self._probe is not None else {},
        }

    def restore(self, state: State, grid: Grid, timeout: float) -> None:
        """Go on with the groups formed before, if they were."""
        self.prepare(grid, timeout)
        if state["probe"]:
            self._probe = state["probe"]["model"]
            self.method = self._grouped_method
        super().restore(state, grid, timeout)

    def before_round(self, server_round: int, grid: Grid, timeout: float) -> float | None:
        """Form the groups once round 1 is over, and let the method's own rule choose from then."""
        if server_round == 2:
            self._form_groups(grid, timeout)
        if server_round >= 2:
            self.method = self._grouped_method
        return None

    def after_training(self, grid: Grid, timeout: float) -> None:
        """Form the groups that no later round needed, and play the pilot: the precheck."""
        if self._probe is None:
            self._form_groups(grid, timeout)
        federation = self.federation(grid, timeout)
        play_after_costs(self.settings, federation, self.clusters, self.alike.clusters, self.folder)

    def admit(
        self, newcomers: Roster, server_round: int, grid: Grid, timeout: float
    ) -> Roster | None:
        """Put each newcomer into the group of least cost to it; leave out who cannot be compared.

        All sites that are connected are asked again, about the probe of the others.
        """
        if self._probe is None:
            return super().admit(newcomers, server_round, grid, timeout)
        joined = self.roster.joined(newcomers)
        present = np.flatnonzero(joined.available(grid)).tolist()
        try:
            for release in self._group.releases:
                newcomers.require(release, why=f"strategy={self.settings.strategy}")
            inquiry = self._inquiry(joined, present, grid, timeout)
            evidence = GATHER[self._group.evidence](inquiry, self.settings)
        except RoundError as error:
            log.warning("%s left out: %s", ", ".join(newcomers.names), error)
            return None
        costs = symmetric(evidence_costs(evidence, self._group.costs).totals)
        known = {row: client for row, client in enumerate(present) if client < len(self.roster)}
        kept = []
        for site, name in enumerate(newcomers.names):
            row = present.index(joined.names.index(name))
            if name in self.roster.names or self._placed(name, costs[row], known):
                kept.append(site)
        if not kept:
            return None
        admitted = newcomers.subset(kept)
        self._write_clusters(self.roster.joined(admitted).names, self.clusters)
        return admitted

    def _placed(self, name: str, costs: np.ndarray, known: dict[int, int]) -> bool:
        """Add a newcomer to a group by its costs to the sites asked; ``known``: row -> client."""
        labels = self.clusters.labels
        groups = {row: int(labels[client]) for row, client in known.items()}
        group = nearest_group(costs.tolist(), groups)
        if group is None:
            log.warning("%s joined but is left out: nothing to compare with anybody", name)
            return False
        self.clusters = Clusters(np.append(labels, group))
        return True

    # The groups --------------------------------------------------------------------------------

    def _form_groups(self, grid: Grid, timeout: float) -> None:
        # A copy: the authors' code keeps references, and so probes the last model of the training.
        self._probe = {name: value.copy(order="C") for name, value in self.models[0].items()}
        self.folder.write(PROBE_FILE, safetensors.numpy.save(dict(self._probe)))
        everybody = self._inquiry(self.roster, range(len(self.roster)), grid, timeout)
        compared, evidence = gathered(everybody, self._group.evidence, self.settings)
        names = [self.roster.names[client] for client in compared]
        comparison = prechecked(names, self._group, evidence)
        self._write(comparison)
        # Who cannot be compared with anybody stays alone.
        labels = np.full(len(self.roster), -1)
        labels[compared] = comparison.clusters.labels
        alone = labels < 0
        labels[alone] = comparison.clusters.k + np.arange(alone.sum())
        self._write_clusters(self.roster.names, Clusters(labels))
        self.regroup(Clusters(labels))
        sizes = sorted(self.clusters.sizes.tolist(), reverse=True)
        log.info("%s; groups of %s", comparison.verdict, ", ".join(map(str, sizes)))

    def _inquiry(
        self, roster: Roster, clients: Sequence[int], grid: Grid, timeout: float
    ) -> Inquiry:
        assert self._probe is not None
        return Inquiry(
            roster, clients, self._probe, self._group.costs, self.settings.seed, grid, timeout
        )

    def _write(self, comparison: Precheck) -> None:
        self.folder.store(comparison.record())
        self.folder.write_arrays(
            "dissimilarity.npz",
            {
                "kind": np.array("OT costs"),
                "sites": np.array(comparison.names),
                "descriptors": np.nan_to_num(comparison.costs, nan=1.0),
                "distances": comparison.costs,
                "labels": comparison.clusters.labels,
                "linkage": comparison.merges,
            },
        )

    def _write_clusters(self, names: Sequence[str], clusters: Clusters) -> None:
        record = ClustersFile(
            round=1,
            strategy=self.settings.strategy,
            metric=f"OT cost, variant {self._group.costs.variant}",
            num_clusters=clusters.k,
            chosen_by="num-clusters" if self._group.num_clusters else "ot-detrimental",
            sites=dict(zip(names, clusters.labels.tolist(), strict=True)),
        )
        self.folder.store(record)
