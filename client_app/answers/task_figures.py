"""Task figures: what a site sends of a run's metrics, beside its accuracy and loss."""

from client_app.site import Site, require
from client_app.training import engine
from common.foreign.code import contained
from common.messages import Parameters, TaskFigures
from common.task_metrics import TASK_METRICS

__all__ = ["figures"]


def figures(parameters: Parameters, site: Site) -> TaskFigures | None:
    """Return what a model's metrics are on a site's held-out rows; None if the run has no more.

    Args:
        parameters: of the model that the site uses.
        site: with held-out rows.
    """
    names = site.settings.more_metrics
    if not names:
        return None
    metrics = [TASK_METRICS.named(name) for name in names]
    if any(metric.tells_classes for metric in metrics):
        require(site, "label-histogram")
    said = engine.predictions(parameters, site)
    sums = []
    for name, metric in zip(names, metrics, strict=True):
        with contained(f"metrics = {name!r}"):
            sums.append(metric.sums(said, site.test_labels))
    return TaskFigures(
        list(names), [len(own) for own in sums], [float(value) for own in sums for value in own]
    )
