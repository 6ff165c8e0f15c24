"""Row sums: what a site's training rows add to a step of a model that is fitted from sums."""

import numpy as np
from flwr.app import Context, Message

from client_app.answers import secagg
from client_app.handlers import answers
from client_app.site import Site
from client_app.summed_rows import learner_of, rows_of
from client_app.training.loop import Stopwatch
from common import messages
from common.errors import MessageError, SecaggError
from common.exact.contract import LARGEST, Arrays
from common.messages import Order
from common.messages.row_sums import ROW_SUMS, SUMS, SumsReport
from common.secagg.messages import HIDDEN_SUMS, HiddenSumsOrder

__all__ = ["clear_sums", "hidden_sums"]

_MOST_MEMBERS = 2**9
"""Of a sum whose entries are below 2^53, in 63 bits."""


@answers(ROW_SUMS)
def clear_sums(message: Message, site: Site) -> Message:
    """Answer a step with this site's sums, as they are."""
    watch = Stopwatch()
    order = Order.decode(message.content)
    sums = learner_of(site).statistics(_step(message), rows_of(site))
    report = SumsReport(site.name, order.round, order.attempt, order.model, watch.seconds)
    return messages.reply(message, report, {SUMS: sums})


@answers(HIDDEN_SUMS, of_node=True)
def hidden_sums(message: Message, site: Site, context: Context) -> Message:
    """Work out this site's sums for a step, and keep them to be masked.

    Raises:
        SecaggError: a sum without room for what its members may add.
    """
    watch = Stopwatch()
    order = HiddenSumsOrder.decode(message.content)
    if order.members > _MOST_MEMBERS:
        raise SecaggError(f"{order.members} sites: whole sums have room for {_MOST_MEMBERS}")
    secagg.begin(order, site, context)
    step, fitted, rows = _step(message), learner_of(site), rows_of(site)
    most = fitted.largest_size(rows.x.shape[1])  # those of a wider step of another group are 0
    if order.entries > most:
        raise MessageError(f"{order.entries} entries, and no step of this fit has over {most}")
    sums = fitted.statistics(step, rows)
    if len(sums) > order.entries:
        raise MessageError(f"{order.entries} entries for {len(sums)} sums")
    assert np.abs(sums).max(initial=0) < LARGEST
    vector = np.zeros(order.entries + 1, np.int64)
    vector[: len(sums)] = sums
    vector[-1] = 1  # how many sites are in it
    report = secagg.advertised(order, site, context, step, vector.view(np.uint64), watch.seconds)
    return messages.reply(message, report)


def _step(message: Message) -> Arrays:
    return messages.decode_arrays(messages.arrays_of(message.content))
