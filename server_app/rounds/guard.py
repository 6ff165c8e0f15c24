"""Guard: what a reply must satisfy before it may count; what fails is rejected with its site named.

One NaN in one reply makes an average NaN, and a wrong shape stops a run without saying whose it
was; both are ordinary in a federation, so every reply is inspected before it is decoded further.
"""

import logging
import math
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from flwr.app import Message
from flwr.common.constant import ErrorCode

from common import messages
from common.errors import MessageError
from common.messages import (
    MOST_LOSS,
    ChoiceReport,
    EvaluateReport,
    FinalReport,
    FineTuneReport,
    Introduction,
    LabelHistogram,
    LossReport,
    NoisyHistogram,
    Order,
    PersonalReport,
    ReleaseNote,
    ScoreCounts,
    TellingReport,
    Template,
    TrainReport,
)
from common.privacy.labels import plausible_counts
from common.tasks import Task
from server_app.rounds.intake import REFUSED

log = logging.getLogger("coterie")

_MOST_ESTIMATED = 1e15  # rows of a class, noise included

_Evaluation = TypeVar("_Evaluation", bound=EvaluateReport)


@dataclass(frozen=True)
class Asked:
    """What a site was asked, against which its reply is held."""

    site: Introduction
    order: Order


def inspect_training(
    reply: Message,
    asked: Asked,
    template: Template,
    *,
    may_withhold_loss: bool = True,
    finite: bool = True,
    kind: type[TrainReport] = TrainReport,
) -> tuple[TrainReport, dict[str, np.ndarray]]:
    """Return a reply's report and arrays; :class:`MessageError` with the reason if unusable.

    Args:
        reply: of a site.
        asked: what it was asked.
        template: of the arrays that are due.
        may_withhold_loss: whether sites that protect their updates keep their loss to themselves.
        finite: whether to look for NaN; where ``UpdateNorms.judged`` comes next, it does that in
            the same pass as it measures.
        kind: of the report that is due.
    """
    refuse_error(reply)
    size = messages.payload_bytes(reply.content)
    if size > template.max_bytes:
        raise MessageError(f"{size} bytes, at most {template.max_bytes} expected")
    report = kind.decode(reply.content)
    noted = may_withhold_loss and ReleaseNote.beside(reply.content) is not None
    withheld = noted and math.isnan(report.loss)
    _compare(report, asked, asked.site.num_examples, loss_withheld=withheld)
    if isinstance(report, TellingReport):
        messages.check_range("loss_before", report.loss_before, -MOST_LOSS, MOST_LOSS)
        messages.check_range("rms_loss_before", report.rms_loss_before, 0, MOST_LOSS)
    parameters = messages.decode_arrays(messages.arrays_of(reply.content))
    messages.check_arrays(parameters, template, finite=finite)
    return report, parameters


def inspect_choice(reply: Message, asked: Asked, number: int) -> ChoiceReport:
    """Return a reply's choice among so many models; :class:`MessageError` if unusable."""
    refuse_error(reply)
    report = ChoiceReport.decode(reply.content)
    compare_order(report, _having_chosen(asked, report.model, number), asked.site.num_examples)
    return report


def inspect_training_of_choice(
    reply: Message,
    asked: Asked,
    template: Template,
    number: int,
    *,
    may_withhold_loss: bool = True,
    finite: bool = True,
) -> tuple[TrainReport, dict[str, np.ndarray]]:
    """Return what :func:`inspect_training` does, of the model that the site chose of so many."""
    refuse_error(reply)
    model = TrainReport.decode(reply.content).model
    asked = _having_chosen(asked, model, number)
    return inspect_training(
        reply, asked, template, may_withhold_loss=may_withhold_loss, finite=finite
    )


def _having_chosen(asked: Asked, model: int, number: int) -> Asked:
    """Return what a site was asked, once it has chosen a model."""
    if not 0 <= model < number:
        raise MessageError(f"chose model {model}, was sent 0 to {number - 1}")
    return replace(asked, order=replace(asked.order, model=model))


def inspect_evaluation(reply: Message, asked: Asked, task: Task) -> EvaluateReport:
    """Return a reply's report; :class:`MessageError` with the reason if unusable."""
    return _evaluation(EvaluateReport, reply, asked, task)


def inspect_personal(reply: Message, asked: Asked, task: Task) -> EvaluateReport:
    """Return a reply's report of two models, as :func:`inspect_evaluation`."""
    report = _evaluation(PersonalReport, reply, asked, task)
    _check_score("shared_", report, asked, task)
    messages.check_range("shared_loss", report.shared_loss, -MOST_LOSS, MOST_LOSS)
    return report


def inspect_fine_tuning(reply: Message, asked: Asked, task: Task) -> FineTuneReport:
    """Return a reply's report of a model before and after, as :func:`inspect_evaluation`."""
    report = _evaluation(FineTuneReport, reply, asked, task)
    _check_score("tuned_", report, asked, task)
    messages.check_range("tuned_loss", report.tuned_loss, -MOST_LOSS, MOST_LOSS)
    return report


def _evaluation(kind: type[_Evaluation], reply: Message, asked: Asked, task: Task) -> _Evaluation:
    refuse_error(reply)
    report = kind.decode(reply.content)
    _compare(report, asked, asked.site.num_test_examples)
    _check_score("", report, asked, task)
    return report


def _check_score(which: str, report: EvaluateReport, asked: Asked, task: Task) -> None:
    """Raise :class:`MessageError` for a score, or sums of one, that a site cannot have."""
    score: float = getattr(report, f"{which}score")
    sums = np.array(getattr(report, f"{which}score_sums"), np.float64)
    if not task.sums_score:
        if sums.size:
            raise MessageError(f"{which}score_sums of {task.score_name}, which is a mean by rows")
        messages.check_range(f"{which}score", score, *task.score_range)
        return
    if not task.score.could_be(sums, report.num_examples, asked.site.num_classes):
        raise MessageError(
            f"its {which}{task.score_name} cannot be of {report.num_examples} held-out rows"
        )
    if not np.array_equal(score, task.score.value(sums), equal_nan=True):
        raise MessageError(f"{which}score = {score}: is not what its sums make")


def inspect_loss(reply: Message, asked: Asked) -> LossReport:
    """Return a reply's report; :class:`MessageError` with the reason if unusable."""
    refuse_error(reply)
    report = LossReport.decode(reply.content)
    _compare(report, asked, asked.site.num_examples)
    messages.check_range("rms_loss", report.rms_loss, 0, MOST_LOSS)
    return report


def inspect_exact_histogram(reply: Message, asked: Asked) -> list[float]:
    """Return a site's rows per class (K,) if they agree with its introduction."""
    refuse_error(reply)
    histogram = LabelHistogram.decode(reply.content)
    _check_classes(histogram, histogram.counts, asked)
    if min(histogram.counts) < 0 or sum(histogram.counts) != asked.site.num_examples:
        raise MessageError(f"counts {histogram.counts} are not of {asked.site.num_examples} rows")
    return [float(count) for count in histogram.counts]


def inspect_noisy_histogram(reply: Message, asked: Asked) -> list[float]:
    """Return what a site's estimates make plausible: rows per class (K,) >= 0 with its sum."""
    refuse_error(reply)
    histogram = NoisyHistogram.decode(reply.content)
    _check_classes(histogram, histogram.estimates, asked)
    if not all(map(math.isfinite, histogram.estimates)):
        raise MessageError("the noisy histogram holds NaN or inf")
    messages.check_range("an estimate", max(map(abs, histogram.estimates)), 0, _MOST_ESTIMATED)
    if max(histogram.estimates) <= 0:
        log.warning(
            "%s: nothing of its label histogram is above the noise; all classes count alike",
            asked.site.site,
        )
    counts: list[float] = plausible_counts(histogram.estimates, asked.site.num_examples).tolist()
    return counts


def _check_classes(
    histogram: LabelHistogram | NoisyHistogram, values: list[int] | list[float], asked: Asked
) -> None:
    if histogram.site != asked.site.site:
        raise MessageError(f"signed {histogram.site!r}")
    if len(values) != asked.site.num_classes:
        raise MessageError(f"{len(values)} classes, introduced with {asked.site.num_classes}")


def refuse_error(reply: Message) -> None:
    """Raise the reason of an error reply."""
    if reply.has_error():
        reason = (reply.error.reason or "").strip().splitlines() or ["no reason given"]
        meant = reply.error.code in (REFUSED, ErrorCode.INVALID_FAB)
        failed = "" if meant else "the site failed: "
        raise MessageError(f"{failed}{reason[-1]}")


def _compare(
    report: TrainReport | EvaluateReport | LossReport,
    asked: Asked,
    rows: int,
    *,
    loss_withheld: bool = False,
) -> None:
    compare_order(report, asked, rows)
    if not loss_withheld:
        messages.check_range("loss", report.loss, -MOST_LOSS, MOST_LOSS)


def compare_order(
    report: TrainReport | EvaluateReport | LossReport | ChoiceReport | ScoreCounts | FinalReport,
    asked: Asked,
    rows: int,
) -> None:
    """Raise :class:`MessageError` for a report of another site, round, model or more rows."""
    order = asked.order
    if report.site != asked.site.site:
        raise MessageError(f"signed {report.site!r}")
    if (report.round, report.attempt) != (order.round, order.attempt):
        raise MessageError(
            f"stale: of round {report.round} attempt {report.attempt}, "
            f"asked for round {order.round} attempt {order.attempt}"
        )
    if report.model != order.model:
        raise MessageError(f"of model {report.model}, was sent model {order.model}")
    if not 1 <= report.num_examples <= rows:
        raise MessageError(
            f"num_examples = {report.num_examples}: must be 1 to {rows}, "
            "the number it introduced itself with"
        )
