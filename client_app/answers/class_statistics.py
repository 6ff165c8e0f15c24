"""Class statistics of a site for the OT cost: mean and second moment of every class, once."""

import hashlib
from collections.abc import Mapping

import numpy as np
from flwr.app import Message

from client_app.answers.representations import SeenRows, represented, seen_report, whole_task
from client_app.answers.with_noise import release_once
from client_app.handlers import answers
from client_app.site import Site
from client_app.training.loop import Stopwatch
from common import messages
from common.errors import DataError
from common.messages import Parameters, ReleaseNote
from common.privacy.book import REPLACE_ROW_IN_CLASS, Entry
from common.privacy.closed_form import zcdp_epsilon
from common.privacy.disclosures import RowSettings
from common.privacy.statistics import Moments, ball_rows, class_event, release_moments

__all__ = ["class_moments", "moments_of_classes"]

_WHAT = "class statistics"


@answers(messages.CLASS_STATISTICS)
def moments_of_classes(message: Message, site: Site) -> Message:
    """Send mean and second moment of every class, if the site's own configuration releases that."""
    watch = Stopwatch()
    order, parameters = whole_task(message, site)
    seen = represented(parameters, site)
    moments, note = class_moments(parameters, seen, site)
    report = seen_report(site, order, seen, watch.seconds)
    return messages.reply(message, report, {messages.MOMENTS: moments}, note)


def class_moments(
    parameters: Parameters, seen: SeenRows, site: Site
) -> tuple[np.ndarray, ReleaseNote | None]:
    """Return the moments of every class (K', r + r(r+1)/2) float64, in the order of its classes.

    With ``statistics-privacy=zcdp`` they are noisy, and asked again about the same model they are
    the same. The model is taken as given: what it tells of the rows that trained it is not counted.
    A question about another model, or that differs in a digit of rho, is another draw: the note
    says what all of them tell.

    Raises:
        DataError: no class has ``min-rows`` rows, whose numbers are public: nothing is charged.
    """
    rows = _by_class(seen)
    if not rows:
        raise DataError(
            f"min-rows = {site.settings.of(RowSettings).min_rows}: no class has as many training "
            "rows here, so there is nothing to compare; leave the site out, or ask for fewer"
        )
    if site.settings.statistics_privacy == "none":
        return _stacked([Moments.of(ball_rows(each)).flat() for each in rows]), None
    rho, delta = site.settings.rho, site.settings.delta
    # Everything in here is known to the server, the rows' numbers included.
    request = f"class statistics at rho {rho!r} of {dict(seen.counts)}, model {_digest(parameters)}"
    answer, book = release_once(
        site.keeper,
        site.budget,
        request,
        Entry(class_event(rho), REPLACE_ROW_IN_CLASS, _WHAT),
        lambda: [
            release_moments(ball_rows(_finite(each)), rho).moments.flat().tolist() for each in rows
        ],
    )
    several = sum(entry.what == _WHAT for entry in book.entries) > 1
    note = ReleaseNote(
        f"discrete Gaussian on the moments, {rho:g}-zCDP",
        REPLACE_ROW_IN_CLASS,
        max(zcdp_epsilon(rho, delta), book.spent_on(_WHAT, delta) if several else 0.0),
        delta,
        rho,
        book.spent(REPLACE_ROW_IN_CLASS, site.budget.delta),
    )
    return _stacked(answer), note


def _finite(rows: np.ndarray) -> np.ndarray:
    """Return rows (n, d) with zeros in the place of one that a model makes NaN or infinite.

    Whether a made model overflows on a row is not to be told.
    """
    return np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)


def _by_class(seen: SeenRows) -> list[np.ndarray]:
    sizes = [seen.rows_of(label) for label in seen.counts]
    return np.split(seen.rows.astype(np.float64), np.cumsum(sizes)[:-1]) if sizes else []


def _stacked(points: list[np.ndarray] | list[list[float]]) -> np.ndarray:
    return np.array(points, dtype=np.float64).reshape(len(points), -1)


def _digest(parameters: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, value in parameters.items():
        digest.update(f"{name} {value.dtype} {value.shape}\0".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
