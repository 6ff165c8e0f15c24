"""Guard: what a reply must satisfy before it may count; what fails is rejected with its site named.

One NaN in one reply makes an average NaN, and a wrong shape stops a run without saying whose it
was; both are ordinary in a federation, so every reply is inspected before it is decoded further.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from flwr.app import Message

from common import messages
from common.errors import MessageError
from common.messages import (
    EvaluateReport,
    Introduction,
    LabelHistogram,
    LossReport,
    NoisyHistogram,
    Order,
    Parameters,
    PersonalReport,
    ReleaseNote,
    TrainReport,
)
from common.privacy.labels import plausible_counts

log = logging.getLogger("coterie")

_Evaluation = TypeVar("_Evaluation", bound=EvaluateReport)

_SLACK_BYTES = 65_536  # headers, names and scalars beside the arrays


@dataclass(frozen=True)
class Template:
    """Names, shapes and types that a site's model must have."""

    arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    max_bytes: int

    @classmethod
    def of(cls, parameters: Parameters) -> "Template":
        """Return the template that the server's own model sets."""
        arrays = {name: (value.shape, value.dtype) for name, value in parameters.items()}
        size = sum(value.nbytes + len(name) + 256 for name, value in parameters.items())
        return cls(arrays, size + _SLACK_BYTES)


@dataclass(frozen=True)
class Asked:
    """What a site was asked, against which its reply is held."""

    site: Introduction
    order: Order


def inspect_training(
    reply: Message, asked: Asked, template: Template
) -> tuple[TrainReport, dict[str, np.ndarray]]:
    """Return a reply's report and arrays; :class:`MessageError` with the reason if unusable."""
    refuse_error(reply)
    size = messages.payload_bytes(reply.content)
    if size > template.max_bytes:
        raise MessageError(f"{size} bytes, at most {template.max_bytes} expected")
    report = TrainReport.decode(reply.content)
    withheld = np.isnan(report.loss) and ReleaseNote.beside(reply.content) is not None
    _compare(report, asked, asked.site.num_examples, loss_withheld=bool(withheld))
    parameters = messages.decode_arrays(messages.arrays_of(reply.content))
    check_arrays(parameters, template)
    return report, parameters


def inspect_evaluation(reply: Message, asked: Asked) -> EvaluateReport:
    """Return a reply's report; :class:`MessageError` with the reason if unusable."""
    return _evaluation(EvaluateReport, reply, asked)


def inspect_personal(reply: Message, asked: Asked) -> EvaluateReport:
    """Return a reply's report of two models, as :func:`inspect_evaluation`."""
    report = _evaluation(PersonalReport, reply, asked)
    if not 0 <= report.shared_accuracy <= 1:
        raise MessageError(f"shared_accuracy = {report.shared_accuracy} is outside [0, 1]")
    if not np.isfinite(report.shared_loss):
        raise MessageError(f"shared_loss = {report.shared_loss}")
    return report


def _evaluation(kind: type[_Evaluation], reply: Message, asked: Asked) -> _Evaluation:
    refuse_error(reply)
    report = kind.decode(reply.content)
    _compare(report, asked, asked.site.num_test_examples)
    if not 0 <= report.accuracy <= 1:
        raise MessageError(f"accuracy = {report.accuracy} is outside [0, 1]")
    return report


def inspect_loss(reply: Message, asked: Asked) -> LossReport:
    """Return a reply's report; :class:`MessageError` with the reason if unusable."""
    refuse_error(reply)
    report = LossReport.decode(reply.content)
    _compare(report, asked, asked.site.num_examples)
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
        reason = (reply.error.reason or "no reason given").strip().splitlines()
        raise MessageError(f"the site failed: {reason[-1]}")


def _compare(
    report: TrainReport | EvaluateReport | LossReport,
    asked: Asked,
    rows: int,
    *,
    loss_withheld: bool = False,
) -> None:
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
    if not (np.isfinite(report.loss) or loss_withheld):
        raise MessageError(f"loss = {report.loss}")
    if not (np.isfinite(report.seconds) and report.seconds >= 0):
        raise MessageError(f"seconds = {report.seconds}")


def check_arrays(parameters: Parameters, template: Template) -> None:
    """Raise :class:`MessageError` for names, shapes or types that differ, and for NaN and inf."""
    for kind, names in (
        ("lacks", template.arrays.keys() - parameters.keys()),
        ("has an unknown", parameters.keys() - template.arrays.keys()),
    ):
        if names:
            raise MessageError(f"{kind} array {min(names)!r}")
    for name, (shape, dtype) in template.arrays.items():
        value = parameters[name]
        if value.shape != shape:
            raise MessageError(f"array {name!r} has shape {value.shape}, expected {shape}")
        if value.dtype != dtype:
            raise MessageError(f"array {name!r} is {value.dtype}, expected {dtype}")
        # min and max are NaN or infinite if any entry is, and need no temporary array
        if value.size and not (np.isfinite(value.min()) and np.isfinite(value.max())):
            kind = "NaN" if np.isnan(value).any() else "an infinite value"
            raise MessageError(f"array {name!r} holds {kind}")
