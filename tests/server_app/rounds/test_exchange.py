import numpy as np
import pytest
from flwr.app import Error, Message

from common import messages
from common.errors import ConfigError
from common.messages import Introduction, Order, TrainReport
from server_app.rounds.delegating_grid import DelegatingGrid
from server_app.rounds.exchange import NO_REPLY, OK, Exchange
from server_app.rounds.intake import IntakeGrid
from server_app.rounds.roster import Roster

ROSTER = Roster(
    tuple(Introduction(name, 5, 2, 3, [4], ["model"]) for name in "abc"), nodes=(11, 22, 33)
)
MODELS = [{"w": np.zeros(2, np.float32)}, {"w": np.ones(2, np.float32)}]


@pytest.fixture
def exchange(task_identity):
    return Exchange.with_models(
        ROSTER, messages.TRAIN, MODELS, {0: 1, 2: 0}, round_number=4, attempt=2
    )


def accept(reply, asked):
    return asked.site.site, asked.order.model


def reply(message):
    order, name = Order.decode(message.content), dict(zip(ROSTER.nodes, "abc", strict=True))
    site = name.get(message.metadata.dst_node_id, "?")
    report = TrainReport(site, order.round, order.attempt, order.model, 5, 0.5, 1.0)
    return messages.reply(message, report, MODELS[0])


def test_each_client_is_sent_its_model_and_equal_models_are_one_object(exchange, task_identity):
    first, second = exchange.outgoing()
    assert [m.metadata.dst_node_id for m in (first, second)] == [11, 33]
    assert Order.decode(first.content) == Order(4, 2, 1)
    assert messages.decode_arrays(messages.arrays_of(first.content))["w"].tolist() == [1, 1]
    everybody = Exchange.with_models(
        ROSTER, messages.TRAIN, MODELS, dict.fromkeys(range(3), 0), round_number=1, attempt=1
    )
    assert len({id(message.content) for message in everybody.outgoing()}) == 1


def test_answers_come_in_the_order_asked_whatever_the_order_of_replies(exchange):
    replies = [reply(message) for message in reversed(exchange.outgoing())]
    answers = exchange.answers(replies, accept)
    assert [(a.client, a.model, a.value, a.verdict) for a in answers] == [
        (0, 1, ("a", 1), OK),
        (2, 0, ("c", 0), OK),
    ]


def test_missing_duplicate_refused_and_foreign_replies(exchange):
    first, second = exchange.outgoing()
    stranger = Message(first.content, 99, messages.TRAIN)
    answers = exchange.answers([reply(first), reply(first), reply(stranger)], accept)
    assert [answer.verdict for answer in answers] == ["2 replies to one message", NO_REPLY]
    assert [answer.value for answer in answers] == [None, None]
    failed = Message(Error(2, "no power"), reply_to=second)
    answers = exchange.answers([failed], accept)
    assert [answer.verdict for answer in answers] == [NO_REPLY, "the site failed: no power"]


def test_messages_of_no_declared_kind_are_not_sent():
    with pytest.raises(ConfigError, match=r"no kind of message is 'query\.losses'"):
        Exchange.with_models(ROSTER, "query.losses", MODELS, {0: 0}, round_number=1, attempt=1)


def test_a_reply_of_another_type_or_with_other_fields_is_refused_of_its_site(exchange):
    first, second = exchange.outgoing()
    odd = reply(second)
    odd.content[messages.RECORD]["rows"] = [1, 2]
    answers = exchange.answers([reply(first), odd], accept)
    assert [answer.verdict for answer in answers] == [
        OK,
        "TrainReport holds 'rows', which it has no field for",
    ]
    other = reply(second)
    other.metadata.__dict__["_message_type"] = messages.EVALUATE

    class Sent(DelegatingGrid):
        def send_and_receive(self, outgoing, *, timeout=None):
            return [other]

    [refused] = IntakeGrid(Sent(None)).send_and_receive([second])
    assert refused.metadata.src_node_id == 33
    assert refused.error.reason == "malformed reply: 'evaluate' in answer to 'train'"
