"""Scores of a round: what the sites' own scores are together."""

from collections.abc import Sequence

from common.messages import EvaluateReport
from common.tasks import Task

__all__ = ["pooled_score"]


def pooled_score(reports: Sequence[EvaluateReport], task: Task, which: str = "") -> float | None:
    """Return the task's score over all held-out rows of some sites; None without any.

    Args:
        reports: of the sites.
        task: that is learnt.
        which: of the scores that a report has: empty, ``shared_`` or ``tuned_``.
    """
    if not reports:
        return None
    return task.pooled_score(
        [getattr(report, f"{which}score") for report in reports],
        [getattr(report, f"{which}score_sums") for report in reports],
        [report.num_examples for report in reports],
    )
