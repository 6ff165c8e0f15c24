"""Candidates: ways to train that a pilot compares, and which models a site shares in each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.serverapp import Grid

from common import seeds
from common.config import Settings
from common.pilot.messages import DITTO, FEDAVG, LOCAL
from server_app.clustering import by_labels
from server_app.clustering.algorithms import Clusters
from server_app.rounds.label_inquiry import LabelInquiry
from server_app.rounds.roster import Roster

__all__ = ["Candidates", "SharedModel", "groups_by_labels"]

SharedModel = tuple[str, int]
"""A candidate, and a group of its sites."""


@dataclass(frozen=True)
class Candidates:
    """Training alone, one model for all, personal models beside it, and a model per group.

    Attributes:
        number: of sites.
        groupings: how the sites can be grouped, each with what it goes by, in words.
    """

    number: int
    groupings: Mapping[str, tuple[Clusters, str]]

    @classmethod
    def of(cls, number: int, offered: Sequence[tuple[Clusters, str]]) -> "Candidates":
        """Return the candidates with those groupings on offer that are candidates of their own.

        All sites in one group are FedAvg, each in its own is training alone, and of two equal ones
        the first counts.
        """
        kept: list[tuple[Clusters, str]] = []
        for clusters, words in offered:
            known = [other.labels for other, _ in kept]
            if 1 < clusters.k < number and not any(
                np.array_equal(clusters.labels, labels) for labels in known
            ):
                kept.append((clusters, words))
        return cls(number, {f"group:{n}": pair for n, pair in enumerate(kept, start=1)})

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, the one that shares least first."""
        return (LOCAL, DITTO, FEDAVG, *self.groupings)

    def words(self, name: str) -> str:
        """Return what a candidate is, as a phrase."""
        usual = {
            LOCAL: "each site alone",
            DITTO: "personal models beside a common one (Ditto)",
            FEDAVG: "one model for all (FedAvg)",
        }
        return usual[name] if name in usual else f"a model per group, {self.groupings[name][1]}"

    def shared_by(self, client: int) -> tuple[SharedModel, ...]:
        """Return which models a site trains with others, FedAvg's first."""
        found = [(FEDAVG, 0)]
        for name, (clusters, _) in self.groupings.items():
            group = int(clusters.labels[client])
            if len(clusters.members(group)) > 1:
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
    if hidden or len(roster) < _FEWEST:
        return None
    inquiry = LabelInquiry(settings)
    if inquiry.ask_all(roster, grid, timeout):
        return None
    grouping = by_labels.by_distances(settings)
    rng = seeds.generator(settings.seed, "pilot", "label groups")
    return grouping.grouped(inquiry.counts, rng).clusters


_FEWEST = 3
"""Sites that a silhouette can group."""
