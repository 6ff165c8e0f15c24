"""A site: its stable id, its rows, and what it is willing to release."""

import functools
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import Context

from client_app import prepared_data, site_config
from client_app.shifted_sites import shifted
from client_app.site_config import SiteConfig
from client_app.site_state import Keeper, keeper_of
from common import config, seeds
from common.config import Settings
from common.data.datasets import SYNTHETIC, Dataset, load_dataset
from common.data.shifts import IMAGE_SHIFTS
from common.data.synthetic import SyntheticSites
from common.errors import ConfigError, DataError, MessageError
from common.privacy import disclosures
from common.privacy.book import Budget
from common.radio import LinkRates
from common.splits import SiteRows, partition


@dataclass(frozen=True)
class Site:
    """What one message needs of the site it reached."""

    name: str
    settings: Settings
    dataset: Dataset
    rows: SiteRows
    releases: tuple[str, ...]
    keeper: Keeper
    """Where the site keeps what must outlive a message."""
    budget: Budget
    """What its noisy releases may amount to, by its owner's word."""
    link_rate: float = 0.0
    """In Mbit/s; 0: what the run's radio profile says."""
    simulated: bool = True
    """Whether it shares its machine with the server; one with data of its own does not."""

    @property
    def train(self) -> tuple[np.ndarray, np.ndarray]:
        """Training inputs (n, *input shape) float32 and labels (n,) int64, or masks."""
        return self.dataset.train_x[self.rows.train], self.dataset.train_targets[self.rows.train]

    @property
    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """Held-out inputs and labels, or masks."""
        return self.dataset.test_x[self.rows.test], self.dataset.test_targets[self.rows.test]


def open_site(context: Context) -> Site:
    """Return the site that a node is, from its node-config and the run's settings."""
    settings = config.from_run_config(context.run_config)
    own = site_config.from_node_config(context.node_config)
    if own.data_path:
        return _own_site(own, settings, keeper_of(context))
    dataset, parts = simulated_federation(settings)
    index, announced = site_config.position(context.node_config)
    if announced != len(parts):
        raise DataError(
            f"the federation has {announced} nodes, but {settings.dataset} is split over "
            f"{len(parts)} sites: set num-clients={announced}, or start {len(parts)} nodes"
        )
    if own.device:
        settings = settings.replace(device=own.device)
    return Site(
        name := parts[index].name,
        settings,
        dataset,
        parts[index],
        _released(own, context, settings),
        keeper_of(context),
        own.budget,
        own.link_rate or _drawn_rate(name, settings),
    )


def _released(own: SiteConfig, context: Context, settings: Settings) -> tuple[str, ...]:
    """Return what a site without data of its own releases.

    Flower's own simulation gives its sites no word to say, and the one who sets the run up owns
    all of them: they release what it needs, as ``coterie simulate`` lets them.
    """
    if "releases" in context.node_config or not _in_flowers_simulation():
        return own.released
    return (*own.released, *disclosures.asked(settings))


def _in_flowers_simulation() -> bool:
    """Return whether this is one of Ray's workers; the process of a deployed site has no Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _drawn_rate(name: str, settings: Settings) -> float:
    """Return the rate of a simulated site's link; 0 where the settings say nothing of links."""
    if not settings.link_rate:
        return 0.0
    rng = seeds.generator(settings.seed, "link", name)
    return LinkRates.parse(settings.link_rate).draw(rng)


def _own_site(own: SiteConfig, settings: Settings, keeper: Keeper) -> Site:
    """Return a site with data of its own; a run cannot choose which, nor the device."""
    if settings.dataset != own.dataset:
        raise ConfigError(
            f"site {own.site}: the run is about dataset={settings.dataset}, this site holds "
            f"{own.dataset!r}; submit it with dataset={own.dataset}"
        )
    if settings.shift != "none":
        raise ConfigError(
            f"site {own.site}: shift = {settings.shift} is for simulated sites, this one holds "
            "data of its own; submit the run with shift=none"
        )
    dataset = prepared_data.open_dataset(own)
    train, test = (np.arange(len(y)) for y in (dataset.train_y, dataset.test_y))
    device = own.device or "auto"
    return Site(
        own.site,
        settings.replace(device=device),
        dataset,
        SiteRows(own.site, train, test),
        own.released,
        keeper,
        own.budget,
        own.link_rate,
        simulated=False,
    )


def _synthetic_sites(settings: Settings) -> SyntheticSites | None:
    if settings.dataset != SYNTHETIC:
        return None
    return SyntheticSites(
        settings.num_clients, settings.synthetic_rows, settings.shift, settings.shift_size
    )


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
        sites=_synthetic_sites(settings),
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
    if settings.shift in IMAGE_SHIFTS:
        dataset = shifted(dataset, rows, settings.shift, settings.shift_size)
    return dataset, rows


def require(site: Site, release: str) -> None:
    """Raise if the site does not release what is asked of it."""
    if release not in site.releases:
        raise MessageError(f"this site does not release {release!r}")
