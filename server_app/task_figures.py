"""Task figures: the run's metrics beside accuracy, of each site, each model and all rows."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from common.config import Settings
from common.data.datasets import has_masks
from common.errors import ConfigError, MessageError
from common.messages import Asked, EvaluateReport, PersonalReport, Reply, TaskFigures
from common.objectives import objective_of
from common.task_metrics import TASK_METRICS, TaskMetric
from server_app import tasks
from server_app.protection import catalogue
from server_app.rounds import guard
from server_app.rounds.attempt import Metrics

__all__ = [
    "SiteFigures",
    "check",
    "figures_of",
    "inspection",
    "metrics_of",
    "say_task",
    "tells_classes",
]

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class SiteFigures:
    """What one site sent of the run's metrics, checked."""

    sums: Mapping[str, np.ndarray]
    """By metric."""
    num_examples: int
    """Held-out rows."""

    @property
    def values(self) -> dict[str, float]:
        """The metrics on the site's rows; NaN where one is not defined there."""
        return {name: _metric(name).value(own) for name, own in self.sums.items()}


Told = tuple[EvaluateReport, SiteFigures]


def check(settings: Settings) -> None:
    """Raise :class:`ConfigError` for metrics that cannot be had in a run."""
    names = settings.more_metrics
    if names and has_masks(settings.dataset):
        raise ConfigError(
            f"metrics = {settings.metrics!r}: dataset = {settings.dataset!r} has masks, whose "
            "accuracy is the mean Dice score; leave metrics out"
        )
    for name in names:
        _check_task(name, settings)
        if _metric(name).tells_classes:
            needs = frozenset({"class-counts"})
            catalogue.check(needs, settings, of=f"metrics={name}")
    if not _metric(settings.target_metric).greater_is_better:
        raise ConfigError(
            f"target-metric = {settings.target_metric!r}: is better the smaller it is; name one "
            "of metrics that grows"
        )


def _check_task(name: str, settings: Settings) -> None:
    task = "classification" if settings.task == "auto" else settings.task
    if _metric(name).task != task:
        others = ", ".join(key for key, metric in TASK_METRICS.items() if metric.task == task)
        raise ConfigError(f"metrics = {name!r}: is not of task={task}; its metrics are {others}")


def say_task(settings: Settings) -> None:
    """Log what the words of a run mean where its label is a quantity."""
    if settings.task == "survival":
        log.info(
            "task=survival: accuracy is the concordance of held-out rows; a step is on all rows of "
            "a site, whatever batch-size says; what compares labels compares shares of events"
        )
    if settings.task == "regression":
        log.info(
            "task=regression: accuracy is the share of %s; what compares labels compares the "
            "classes between the limits",
            tasks.accuracy_means(settings.to_dict()).removesuffix(", over all sites"),
        )


def tells_classes(settings: Settings) -> bool:
    """Return whether sites must tell their held-out rows of each class for a run's metrics."""
    return any(_metric(name).tells_classes for name in settings.more_metrics)


def inspection(settings: Settings) -> Callable[[Reply, Asked], Told]:
    """Return what reads the replies to an evaluation in a run."""
    objective = objective_of(settings)
    two_models = objective.is_personal and objective.shares_model
    read = _of_two_models if two_models else guard.evaluation
    return lambda reply, asked: (read(reply), figures_of(reply, asked, settings))


def _of_two_models(reply: Reply) -> EvaluateReport:
    return reply.of(PersonalReport)


def figures_of(reply: Reply, asked: Asked, settings: Settings) -> SiteFigures:
    """Return what a reply says of the run's metrics; :class:`MessageError` if that cannot be."""
    rows, names = asked.site.num_test_examples, settings.more_metrics
    if not names:
        return SiteFigures({}, rows)
    told = TaskFigures.beside(reply.content)
    if tuple(told.metrics) != names:
        raise MessageError(f"figures of {told.metrics}, asked for {list(names)}")
    if any(width < 0 for width in told.widths):
        raise MessageError(f"figures of widths {told.widths}")
    parts = np.split(np.array(told.sums, np.float64), np.cumsum(told.widths)[:-1])
    sums = dict(zip(names, parts, strict=True))
    for name, own in sums.items():
        if not _metric(name).could_be(own, rows, asked.site.num_classes):
            raise MessageError(f"its {name} cannot be of {rows} held-out rows")
    return SiteFigures(sums, rows)


def metrics_of(told: Mapping[int, Told]) -> Metrics:
    """Return the metrics of a round from what each client told, by client."""
    figures = {client: own for client, (_, own) in told.items() if own.sums}
    if not figures:
        return Metrics()
    by_model: dict[int, list[SiteFigures]] = {}
    for client, own in figures.items():
        by_model.setdefault(told[client][0].model, []).append(own)
    return Metrics(
        _over_sites(list(figures.values())),
        {model: _over_sites(mine) for model, mine in by_model.items()},
        {client: own.values for client, own in figures.items()},
    )


def _over_sites(figures: Sequence[SiteFigures]) -> dict[str, float]:
    """Return the metrics over the rows of some sites, at least one."""
    rows = [own.num_examples for own in figures]
    return {
        name: _metric(name).pooled([own.sums[name] for own in figures], rows)
        for name in figures[0].sums
    }


def _metric(name: str) -> TaskMetric:
    return TASK_METRICS.named(name)
