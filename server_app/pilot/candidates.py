"""Candidates: ways to train that a pilot compares, and which models a site shares in each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.serverapp import Grid

from common import seeds
from common.config import Settings
from common.pilot.messages import DITTO, FEDAVG, LOCAL
from server_app.clustering.algorithms import Clusters
from server_app.groupings import by_labels
from server_app.rounds.label_inquiry import LabelInquiry
from server_app.rounds.roster import Roster

__all__ = ["FEWEST", "Candidates", "OfferedGroups", "SharedModel", "groups_by_labels"]

SharedModel = tuple[str, int]
"""A candidate, and a group of its sites."""

FEWEST = 3
"""Sites that a silhouette can group."""

_WORDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    LOCAL: ("each site alone", ("strategy=fedavg", "objective=local")),
    DITTO: (
        "personal models beside a common one (Ditto)",
        ("strategy=fedavg", "objective=ditto", "personal-lambda=0.3"),
    ),
    FEDAVG: ("one model for all (FedAvg)", ("strategy=fedavg",)),
}


@dataclass(frozen=True)
class OfferedGroups:
    """A grouping that can be tried: a model per group.

    Attributes:
        clusters: the groups.
        by: what they go by, as a phrase.
        settings: of a run that trains in such groups, as ``key=value``.
    """

    clusters: Clusters
    by: str
    settings: tuple[str, ...]


@dataclass(frozen=True)
class Candidates:
    """Training alone, one model for all, personal models beside it, and a model per group.

    Attributes:
        number: of sites.
        groupings: how the sites can be grouped, by name.
    """

    number: int
    groupings: Mapping[str, OfferedGroups]

    @classmethod
    def of(cls, number: int, offered: Sequence[OfferedGroups]) -> "Candidates":
        """Return the candidates with those groupings on offer that are candidates of their own.

        All sites in one group are FedAvg, each in its own is training alone, and of two equal ones
        the first counts.
        """
        kept: list[OfferedGroups] = []
        for groups in offered:
            labels = groups.clusters.labels
            known = any(np.array_equal(labels, other.clusters.labels) for other in kept)
            if 1 < groups.clusters.k < number and not known:
                kept.append(groups)
        return cls(number, {f"group:{n}": groups for n, groups in enumerate(kept, start=1)})

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, the one that shares least first."""
        return (LOCAL, DITTO, FEDAVG, *self.groupings)

    @property
    def shared(self) -> tuple[str, ...]:
        """Those with models that sites share, FedAvg the first; Ditto's common one is FedAvg's."""
        return (FEDAVG, *self.groupings)

    def words(self, name: str) -> str:
        """Return what a candidate is, as a phrase."""
        if name in _WORDS:
            return _WORDS[name][0]
        return f"a model per group, {self.groupings[name].by}"

    def settings(self, name: str) -> tuple[str, ...]:
        """Return the settings of a run that trains so, as ``key=value``."""
        return _WORDS[name][1] if name in _WORDS else self.groupings[name].settings

    def groups(self, name: str, sites: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """Return a grouping's groups by the names of their sites; of other candidates none."""
        if name not in self.groupings:
            return ()
        clusters = self.groupings[name].clusters
        return tuple(
            tuple(sites[client] for client in clusters.members(group).tolist())
            for group in range(clusters.k)
        )

    def shared_by(self, client: int) -> tuple[SharedModel, ...]:
        """Return which models a site trains with others, FedAvg's first."""
        found = [(FEDAVG, 0)]
        for name, offered in self.groupings.items():
            group = int(offered.clusters.labels[client])
            if len(offered.clusters.members(group)) > 1:
                found.append((name, group))
        return tuple(found)

    def of_site(self, client: int) -> tuple[str, ...]:
        """Return the candidates that a site has; in a group of its own, it would train alone."""
        return (LOCAL, DITTO, *(name for name, _ in self.shared_by(client)))


def groups_by_labels(
    settings: Settings, roster: Roster, grid: Grid, timeout: float
) -> Clusters | None:
    """Return the sites grouped by their label histograms; None where that cannot be.

    Some site does not release its own, or the run hides it, or they are too few to be grouped.
    """
    hidden = settings.label_privacy != "none" or any(
        "label-histogram" not in site.releases for site in roster.sites
    )
    if hidden or len(roster) < FEWEST:
        return None
    inquiry = LabelInquiry(settings)
    if inquiry.ask_all(roster, grid, timeout):
        return None
    grouping = by_labels.by_distances(settings)
    rng = seeds.generator(settings.seed, "pilot", "label groups")
    return grouping.grouped(inquiry.counts, rng).clusters
