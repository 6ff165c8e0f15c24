"""Masked data: sets of volumes and masks, and the methods that have nothing to compare on them."""

from collections.abc import Mapping

from common.config import Settings
from common.data.datasets import SEGMENTED
from common.errors import ConfigError
from server_app.clustering.by_models import ModelGroups
from server_app.transport.groups import OtGroups

__all__ = ["accuracy_means", "check"]


def accuracy_means(settings: Mapping[str, object]) -> str:
    """Return in words what a run calls accuracy."""
    if settings.get("dataset") in SEGMENTED:
        return "mean Dice score of the masks found in held-out volumes, over all sites"
    return "held-out rows classified right, over all sites"


def check(settings: Settings, group: object) -> None:
    """Refuse to group sites by what masks do not have: label distributions, predicted classes.

    Weights, updates and OT costs of what the model makes of whole volumes can be compared.
    """
    if settings.dataset not in SEGMENTED or group is None or isinstance(group, OtGroups):
        return
    if isinstance(group, ModelGroups):
        if group.describe in ("weights", "update"):
            return
        what = f"the {group.describe} of models, a row of numbers for each example"
    else:
        what = "label distributions"
    raise ConfigError(
        f"dataset = {settings.dataset!r}: it has masks and no classes, and "
        f"strategy={settings.strategy} compares {what}; use strategy=ot-groups, wc, wc-updates, "
        "random or fedavg"
    )
