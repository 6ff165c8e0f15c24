"""One-time clustering of the sites by their label distributions, before round 1."""

import logging
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from common import messages, seeds
from common.errors import MessageError, RoundError
from common.messages import LabelHistogram, Order
from server_app.clustering import Grouping
from server_app.exchange import OK, Exchange
from server_app.guard import Asked, refuse_error
from server_app.strategies.base import FederatedTraining

log = logging.getLogger("coterie")


class LabelDistributionClustering(FederatedTraining):
    """Asks every site for its label histogram, groups the sites, then plays the rounds."""

    def prepare(self, grid: Grid, timeout: float) -> None:
        """Query the histograms and form the clusters; every site must answer."""
        group = self.method.group
        assert group is not None
        self.roster.require("label-histogram", why=f"strategy={self.settings.strategy}")
        counts = self._histograms(grid, timeout)
        shares = counts / counts.sum(axis=1, keepdims=True)
        distances = group.compare(shares)
        rng = seeds.generator(self.settings.seed, "clustering")
        grouping = group.cluster(shares, distances, rng)
        self.clusters = grouping.clusters
        self._write(grouping, shares, distances)
        sizes = sorted(self.clusters.sizes.tolist(), reverse=True)
        log.info("%d clusters of sizes %s", self.clusters.k, ", ".join(map(str, sizes)))

    def _histograms(self, grid: Grid, timeout: float) -> np.ndarray:
        """Return the label counts of all sites, (n, K)."""
        exchange = Exchange(
            self.roster,
            messages.LABEL_HISTOGRAM,
            contents=[messages.content()],
            orders=[Order(round=0, attempt=1, model=0)],
            models=dict.fromkeys(range(len(self.roster)), 0),
        )
        replies = grid.send_and_receive(exchange.outgoing(), timeout=timeout)
        answers = exchange.answers(replies, _inspect)
        bad = [answer for answer in answers if answer.verdict != OK]
        if bad:
            raise RoundError(
                f"no label histogram from {self.roster.names[bad[0].client]}: {bad[0].verdict}; "
                "clusters need every site's, so repair or leave out the site"
            )
        return np.array([answer.value for answer in answers], dtype=np.int64)

    def _write(self, grouping: Grouping, shares: np.ndarray, distances: np.ndarray) -> None:
        names = self.roster.names
        labels = grouping.clusters.labels
        chosen_by = "num-clusters" if self.settings.num_clusters else "silhouette"
        record: dict[str, Any] = {
            "round": 0,
            "strategy": self.settings.strategy,
            "metric": self.settings.metric,
            "num_clusters": grouping.clusters.k,
            "chosen_by": chosen_by,
            "scores": {str(k): score for k, score in grouping.scores.items()},
            "sites": dict(zip(names, labels.tolist(), strict=True)),
        }
        self.folder.write_json("clusters.json", record)
        arrays = {
            "kind": np.array("label-histogram"),
            "sites": np.array(names),
            "descriptors": shares,
            "distances": distances,
            "labels": labels,
        }
        self.folder.write_arrays("dissimilarity.npz", arrays)


def _inspect(reply: Message, asked: Asked) -> list[int]:
    """Return a site's counts if they agree with its introduction."""
    refuse_error(reply)
    histogram = LabelHistogram.decode(reply.content)
    site = asked.site
    if histogram.site != site.site:
        raise MessageError(f"signed {histogram.site!r}")
    if len(histogram.counts) != site.num_classes:
        raise MessageError(f"{len(histogram.counts)} classes, introduced with {site.num_classes}")
    if min(histogram.counts) < 0 or sum(histogram.counts) != site.num_examples:
        raise MessageError(f"counts {histogram.counts} are not of {site.num_examples} rows")
    return histogram.counts
