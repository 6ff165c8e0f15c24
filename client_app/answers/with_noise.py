"""Noisy answers: counted in the site's own book first, and given once.

The book lies where the site keeps things, so it spans runs, and it is safe on disk before an answer
leaves: a crash in between costs budget, never privacy. The budget is the site's own, from its
node-config; a run can only ask.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Message

from client_app.site import Participant, Site
from client_app.site_state import Keeper
from common import messages
from common.errors import BudgetError, MessageError
from common.messages import LabelHistogram, NoisyHistogram, ReleaseNote
from common.objectives import Fitted, objective_of
from common.privacy.book import SITE, Budget, Entry, PrivacyBook
from common.privacy.labels import LabelMechanism, label_mechanism
from common.privacy.updates import UpdateNoise, clipped_update, noisy_model

__all__ = ["BOOK", "book_of", "charge_update", "label_answer", "release_once", "update_answer"]

BOOK = "privacy-book.json"


def book_of(keeper: Keeper) -> PrivacyBook:
    """Return what a site has spent so far."""
    return PrivacyBook.from_bytes(keeper.read(BOOK))


def release_once(
    keeper: Keeper, budget: Budget, request: str, entry: Entry, draw: Callable[[], Any]
) -> tuple[Any, PrivacyBook]:
    """Return the answer to a request and the book after it.

    A request that was answered before gets the same answer and costs nothing: noise drawn afresh
    could be averaged away. :class:`BudgetError` if the budget does not allow a new one.

    Args:
        keeper: where the book lies.
        budget: the site's own.
        request: all that the answer depends on besides the data.
        entry: what a new answer costs.
        draw: makes a new answer, as JSON can hold it.
    """
    with keeper.locked():
        book = book_of(keeper)
        if request not in book.answers:
            book = book.charged(entry, budget).answered(request, draw())
            keeper.write(BOOK, book.to_bytes())
        return book.answers[request], book


def charge_update(
    keeper: Keeper, budget: Budget, entry: Entry, planned: UpdateNoise
) -> PrivacyBook:
    """Count an update, too large to be kept, before it leaves; return the book after it.

    One lock from counting to charging: two answers at once cannot both be the last one.

    Raises:
        BudgetError: the site's budget does not allow it, or the book has as many entries of this
            name as were planned for.
    """
    with keeper.locked():
        book = book_of(keeper)
        taken = sum(known.what == entry.what for known in book.entries)
        if taken >= planned.releases:
            raise BudgetError(
                f"this run has had {taken} updates of this site, all that its update-epsilon = "
                f"{planned.epsilon:g} was planned for"
            )
        book = book.charged(entry, budget)
        keeper.write(BOOK, book.to_bytes())
        return book


def label_answer(
    site: Participant, counts: list[int]
) -> tuple[LabelHistogram | NoisyHistogram, ReleaseNote | None]:
    """Return a site's histogram (K,) as ``label-privacy`` has it, and how it is protected."""
    if site.settings.label_privacy == "two-party":
        raise MessageError("label-privacy=two-party: no label histogram leaves this site")
    mechanism = label_mechanism(site.settings, len(counts))
    if mechanism is not None:
        return _noisy(site, counts, mechanism)
    if site.budget.bounded:
        raise BudgetError(
            f"this site has a privacy budget (privacy-epsilon = {site.budget.epsilon:g}) and gives "
            "out no exact label histogram: run with label-privacy=gaussian or k-rr"
        )
    return LabelHistogram(site.name, counts), None


def update_answer(
    message: Message, site: Site, fitted: Fitted
) -> tuple[Fitted, ReleaseNote | None]:
    """Return what a training leaves of a site as ``update-privacy`` has it, and how protected.

    With noise, the training loss stays at the site: nothing bounds what one number tells.
    """
    settings = site.settings
    if settings.update_privacy != "local-dp" or not objective_of(settings).shares_model:
        return fitted, None
    planned = UpdateNoise.of(settings)
    entry = Entry(planned.event, SITE, f"update in run {message.metadata.run_id}")
    sent = messages.decode_arrays(messages.arrays_of(message.content))
    change = clipped_update(fitted.parameters, sent, planned.clip)  # or nothing leaves, or counts
    book = charge_update(site.keeper, site.budget, entry, planned)
    noisy = noisy_model(sent, change, planned.sigma)
    name = f"Gaussian, clipped to {planned.clip:g}, sigma {planned.sigma:.3g}"
    spent = book.spent(SITE, site.budget.delta)
    note = ReleaseNote(name, SITE, planned.spent(1), planned.delta, spent=spent)
    return replace(fitted, parameters=noisy, loss=math.nan), note


def _noisy(
    site: Participant, counts: list[int], mechanism: LabelMechanism
) -> tuple[NoisyHistogram, ReleaseNote]:
    # The number of rows is public, so an answer may depend on it: new rows are a new question.
    request = f"label histogram of {sum(counts)} rows, {len(counts)} classes: {mechanism!r}"
    entry = Entry(mechanism.event, mechanism.unit, "label histogram")
    answer, book = release_once(
        site.keeper,
        site.budget,
        request,
        entry,
        lambda: mechanism.release(np.array(counts, dtype=np.int64)).tolist(),
    )
    epsilon, delta = mechanism.promise
    spent = book.spent(mechanism.unit, site.budget.delta)
    note = ReleaseNote(mechanism.name, mechanism.unit, epsilon, delta, spent=spent)
    return NoisyHistogram(site.name, answer), note
