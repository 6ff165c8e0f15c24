"""First training of sites that join late: outside any round, on a model that the others had."""

import logging
from collections.abc import Callable, Collection, Iterable

from flwr.serverapp import Grid

from common import messages
from common.messages import Parameters, Template
from server_app.rounds.attempt import Trained
from server_app.rounds.exchange import Answer, Exchange
from server_app.rounds.guard import training
from server_app.rounds.roster import Roster

log = logging.getLogger("coterie")


def first_trained(
    newcomers: Roster, model: Parameters, server_round: int, grid: Grid, timeout: float
) -> list[Answer[Trained]]:
    """Return what each newcomer makes of a model, or why nothing came of it.

    Args:
        newcomers: the sites.
        model: that all of them train.
        server_round: the round before which they joined.
        grid: the connection to the sites.
        timeout: seconds to wait for their answers.
    """
    template = Template.of(model)
    exchange = Exchange.with_models(
        newcomers,
        messages.TRAIN,
        [model],
        dict.fromkeys(range(len(newcomers)), 0),
        round_number=server_round,
        attempt=1,
    )
    replies = grid.send_and_receive(exchange.outgoing(), timeout=timeout)
    return exchange.answers(replies, lambda reply, asked: training(reply, template))


def admitted(
    newcomers: Roster,
    known: Collection[str],
    answers: Iterable[Answer[Trained]],
    place: Callable[[Parameters], None],
) -> Roster | None:
    """Return the newcomers that answered with what they make of a model; None: none did.

    Args:
        newcomers: the sites.
        known: names of sites that have a place from before; they came back.
        answers: of the newcomers.
        place: called with what each site trained that has no place yet, in order.
    """
    kept = []
    for answer in answers:
        name = newcomers.names[answer.client]
        if answer.value is None:
            log.warning("%s joined but is left out: %s", name, answer.verdict)
            continue
        kept.append(answer.client)
        if name not in known:
            place(answer.value[1])
    return newcomers.subset(kept) if kept else None
