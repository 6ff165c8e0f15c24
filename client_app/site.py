"""A site: its stable id, its rows, and what it is willing to release."""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import Context

from common import config
from common.config import Settings, unknown_name
from common.data import Dataset, load_dataset
from common.errors import ConfigError, DataError
from common.messages import DISCLOSURES, RELEASES
from common.splits import SiteRows, partition

_PARTITION = "partition-id"  # given to every node by Flower's simulation and by ours
_PARTITIONS = "num-partitions"
_RELEASES = "releases"  # a site's own say, in its node-config: names separated by commas


@dataclass(frozen=True)
class Site:
    """What one message needs of the site it reached."""

    name: str
    settings: Settings
    dataset: Dataset
    rows: SiteRows
    releases: tuple[str, ...]

    @property
    def train(self) -> tuple[np.ndarray, np.ndarray]:
        """Training inputs (n, *input shape) float32 and labels (n,) int64."""
        return self.dataset.train_x[self.rows.train], self.dataset.train_y[self.rows.train]

    @property
    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """Held-out inputs and labels."""
        return self.dataset.test_x[self.rows.test], self.dataset.test_y[self.rows.test]


def open_site(context: Context) -> Site:
    """Return the site that a node is, from its node-config and the run's settings."""
    settings = config.from_run_config(context.run_config)
    dataset, parts = simulated_federation(settings)
    index = int(context.node_config[_PARTITION])
    announced = int(context.node_config[_PARTITIONS])
    if announced != len(parts):
        raise DataError(
            f"the federation has {announced} nodes, but {settings.dataset} is split over "
            f"{len(parts)} sites: set num-clients={announced}, or start {len(parts)} nodes"
        )
    releases = _releases(str(context.node_config.get(_RELEASES, ",".join(RELEASES))))
    return Site(parts[index].name, settings, dataset, parts[index], releases)


@functools.lru_cache(maxsize=1)
def simulated_federation(settings: Settings) -> tuple[Dataset, list[SiteRows]]:
    """Return the data set and the rows of every site.

    Made once per process, not per message; workers forked afterwards share its pages.
    """
    dataset = load_dataset(
        settings.dataset,
        data_dir=Path(settings.data_dir) if settings.data_dir else None,
        download=settings.download,
        label_column=settings.label_column,
        client_column=settings.client_column,
        test_fraction=settings.test_fraction,
        seed=settings.seed,
    )
    rows = partition(
        dataset,
        split=settings.split,
        num_clients=settings.num_clients,
        alpha=settings.dirichlet_alpha,
        num_partitions=settings.num_partitions,
        min_size=settings.min_partition_size,
        seed=settings.seed,
    )
    return dataset, rows


def _releases(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        known = (*RELEASES, *DISCLOSURES)
        if name not in known:
            raise ConfigError(f"node-config {_RELEASES}: " + unknown_name("release", name, known))
    return names
