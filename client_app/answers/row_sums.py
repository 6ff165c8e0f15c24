"""Row sums: what a site's training rows add to a step of a model that is fitted from sums.

An honest fit takes each step once, and steps that are played again are the same to the last bit.
So a site answers one step of each number in a run: whoever made steps up would read as many sums of
weights of its own choice as it cared to ask for.
"""

import json

import numpy as np
from flwr.app import Context, Message

from client_app import questions
from client_app.answers import secagg
from client_app.handlers import answers
from client_app.site import Site
from client_app.site_state import ContextKeeper
from client_app.summed_rows import learner_of, rows_of
from client_app.training.loop import Stopwatch
from common import messages
from common.errors import MessageError, SecaggError
from common.exact.contract import LARGEST, Arrays, SummedModel
from common.messages import Order
from common.messages.row_sums import ROW_SUMS, SUMS, SumsReport
from common.secagg.cohorts import digest_of
from common.secagg.messages import HIDDEN_SUMS, HiddenSumsOrder
from common.secagg.vectors import Vector

__all__ = ["clear_sums", "hidden_sums", "once"]

_MOST_MEMBERS = 2**9
"""Of a sum whose entries are below 2^53, in 63 bits."""


_STEPS = "fit-steps"  # in Context.state: of one run
_SHOWN = 16  # digits of a step's digest


@answers(ROW_SUMS, of_node=True)
def clear_sums(message: Message, site: Site, context: Context) -> Message:
    """Answer a step with this site's sums, as they are.

    Raises:
        MessageError: a step that no fit takes, or another one of this number than before.
    """
    watch = Stopwatch()
    order = Order.decode(message.content)
    step, fitted = _step(message), learner_of(site)
    sums = fitted.statistics(step, rows_of(site))
    once(step, fitted, site, context)
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
    scale = secagg.begin(order, site, context)
    step, fitted, rows = _step(message), learner_of(site), rows_of(site)
    most = fitted.largest_size(rows.x.shape[1])  # those of a wider step of another group are 0
    if order.entries > most:
        raise MessageError(f"{order.entries} entries, and no step of this fit has over {most}")
    sums = fitted.statistics(step, rows)
    if len(sums) > order.entries:
        raise MessageError(f"{order.entries} entries for {len(sums)} sums")
    once(step, fitted, site, context)
    assert np.abs(sums).max(initial=0) < LARGEST
    whole = np.zeros(order.entries + 1, np.int64)
    whole[: len(sums)] = sums
    whole[-1] = 1  # how many sites are in it
    layout = scale.layout({}, order.entries)
    vector = secagg.Packed(layout, layout.packed(Vector.of(whole[:0], whole)).tobytes())
    asked = fitted.question(step)
    report = secagg.advertised(order, site, context, asked, vector, watch.seconds)
    return messages.reply(message, report)


def once(
    step: Arrays, fitted: SummedModel, site: Site, context: Context, which: str = _STEPS
) -> None:
    """Note the step that a site answers in a run, once it is known to be one that a fit takes.

    Args:
        step: that is answered.
        fitted: what it is a step of.
        site: that answers.
        context: where it keeps which it answered.
        which: of the run's fits.

    Raises:
        MessageError: beyond the fit's last, another of the same number than before, or one of
            another fit.
    """
    if not questions.is_asked(site, context):
        return
    number, keeper = int(step["step"]), ContextKeeper(context.state)
    if number >= fitted.most_steps:
        raise MessageError(f"step {number}: this fit has {fitted.most_steps} at most")
    now = {str(number): digest_of(fitted.question(step))[:_SHOWN]}
    if number:
        now["fixed"] = digest_of(fitted.fixed(step))[:_SHOWN]
    kept = keeper.read(which)
    known: dict[str, str] = json.loads(kept) if kept else {}
    if any(known.get(name, value) != value for name, value in now.items()):
        raise MessageError(
            f"step {number}: another one of this number, or of another fit, was answered in this "
            "run; a site answers each step of a fit once, and the same again"
        )
    keeper.write(which, json.dumps(known | now).encode())


def _step(message: Message) -> Arrays:
    return messages.decode_arrays(messages.arrays_of(message.content))
