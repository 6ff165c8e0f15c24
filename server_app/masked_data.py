"""Masked data: sets of volumes and masks, and the methods with nothing to compare on them."""

from collections.abc import Mapping

from common.config import Settings
from common.data.datasets import has_masks
from common.errors import ConfigError
from server_app.clustering.grouping import Description

__all__ = ["accuracy_means", "check"]


def accuracy_means(settings: Mapping[str, object]) -> str:
    """Return in words what a run calls accuracy."""
    if has_masks(settings.get("dataset")):
        return "mean Dice score of the masks found in held-out volumes, over all sites"
    return "held-out rows classified right, over all sites"


def check(settings: Settings, asked: Description | None) -> None:
    """Refuse to describe sites by what masks do not have: label distributions, predicted classes.

    Weights, updates and OT costs of what the model makes of whole volumes can be compared.
    """
    if not has_masks(settings.dataset) or asked is None or not asked.needs_classes:
        return
    raise ConfigError(
        f"dataset = {settings.dataset!r}: it has masks and no classes, and "
        f"strategy={settings.strategy} compares {asked.needs_classes}; use "
        "strategy=ot-groups, wc, wc-updates, random or fedavg"
    )
