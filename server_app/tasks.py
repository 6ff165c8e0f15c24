"""Tasks: what a run calls accuracy and loss, and the methods with nothing to compare."""

from collections.abc import Mapping

from common.config import Settings
from common.data.datasets import has_masks
from common.errors import ConfigError
from server_app.clustering.grouping import Description

__all__ = ["accuracy_means", "check", "loss_means"]


def accuracy_means(settings: Mapping[str, object]) -> str:
    """Return in words what a run calls accuracy."""
    if has_masks(settings.get("dataset")):
        return "mean Dice score of the masks found in held-out volumes, over all sites"
    if settings.get("task") == "survival":
        return (
            "pairs of held-out rows of one site of which the first to have its event was said to "
            "be at the larger risk (concordance), mean over the sites by rows"
        )
    if settings.get("task") == "regression":
        return (
            "held-out rows predicted to within a quarter of the distance between the outermost "
            "limits of the label, over all sites"
        )
    return "held-out rows classified right, over all sites"


def loss_means(settings: Mapping[str, object]) -> str:
    """Return in words what a run's losses are in."""
    if has_masks(settings.get("dataset")):
        return "1 - Dice"
    if settings.get("task") == "survival":
        return "nats of Cox's partial likelihood for each event"
    if settings.get("task") == "regression":
        return "squared units of the label's limits"
    return "nats"


def check(settings: Settings, asked: Description | None) -> None:
    """Refuse to describe sites by what their task does not have.

    Masks have no label distributions and predicted classes; weights, updates and OT costs of what
    the model makes of whole volumes can be compared. Quantities have the classes between their
    limits, but a model gives them no probabilities.
    """
    if asked is None:
        return
    if has_masks(settings.dataset) and asked.needs_classes:
        raise ConfigError(
            f"dataset = {settings.dataset!r}: it has masks and no classes, and "
            f"strategy={settings.strategy} compares {asked.needs_classes}; use "
            "strategy=ot-groups, wc, wc-updates, random or fedavg"
        )
    one_number = settings.task in ("regression", "survival")
    if one_number and (compared := asked.reads_probabilities(settings)):
        raise ConfigError(
            f"task = {settings.task!r}: a model says one number of a row, and "
            f"strategy={settings.strategy} compares {compared}; use "
            "strategy=similarity, ot-groups, wc or fedavg"
        )
