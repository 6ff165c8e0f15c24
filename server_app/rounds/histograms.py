"""Reading the sites' label histograms, exact or noisy."""

import logging
import math

from flwr.app import Message

from common.errors import MessageError
from common.messages import LabelHistogram, NoisyHistogram
from common.privacy.labels import plausible_counts
from server_app.rounds.guard import Asked, refuse_error

__all__ = ["inspect_exact", "inspect_noisy"]

log = logging.getLogger("coterie")


def inspect_exact(reply: Message, asked: Asked) -> list[float]:
    """Return a site's rows per class (K,) if they agree with its introduction."""
    refuse_error(reply)
    histogram = LabelHistogram.decode(reply.content)
    _check(histogram, histogram.counts, asked)
    if min(histogram.counts) < 0 or sum(histogram.counts) != asked.site.num_examples:
        raise MessageError(f"counts {histogram.counts} are not of {asked.site.num_examples} rows")
    return [float(count) for count in histogram.counts]


def inspect_noisy(reply: Message, asked: Asked) -> list[float]:
    """Return what a site's estimates make plausible: rows per class (K,) >= 0 with its sum."""
    refuse_error(reply)
    histogram = NoisyHistogram.decode(reply.content)
    _check(histogram, histogram.estimates, asked)
    if not all(map(math.isfinite, histogram.estimates)):
        raise MessageError("the noisy histogram holds NaN or inf")
    if max(histogram.estimates) <= 0:
        log.warning(
            "%s: nothing of its label histogram is above the noise; all classes count alike",
            asked.site.site,
        )
    counts: list[float] = plausible_counts(histogram.estimates, asked.site.num_examples).tolist()
    return counts


def _check(
    histogram: LabelHistogram | NoisyHistogram, values: list[int] | list[float], asked: Asked
) -> None:
    if histogram.site != asked.site.site:
        raise MessageError(f"signed {histogram.site!r}")
    if len(values) != asked.site.num_classes:
        raise MessageError(f"{len(values)} classes, introduced with {asked.site.num_classes}")
