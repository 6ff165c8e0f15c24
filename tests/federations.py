"""ClientApps for tests: Coterie's own, with one site that misbehaves."""

import functools
import os
import signal
import time

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from client_app.app import app as real
from common import messages
from common.messages import Order, TrainReport

BAD_SITE = 2


def load(misbehaviour):
    """A loader as the grid wants it: what one site does to its reply, or instead of it."""
    return functools.partial(_load, misbehaviour)


def _load(misbehaviour):
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == BAD_SITE:
            return misbehaviour(message, context)
        return real(message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return real(message, context)

    for action in ("introduce", "label_histogram"):
        app.query(action)(real)
    return app


def _resend(message, context, change):
    reply = real(message, context)
    report = TrainReport.decode(reply.content)
    arrays = dict(messages.decode_arrays(messages.arrays_of(reply.content)))
    return messages.reply(message, report, change(arrays))


def sends_nan(message, context):
    return _resend(message, context, lambda a: {k: v * np.float32(np.nan) for k, v in a.items()})


def sends_wrong_shape(message, context):
    return _resend(message, context, lambda a: {k: v.reshape(-1) for k, v in a.items()})


def raises(message, context):
    raise RuntimeError("the disk of site-2 is full")


def dies(message, context):
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(message, context):
    time.sleep(3600)


def load_evaluating_at_the_second_attempt():
    app = load(real)()

    def evaluate(message, context):
        if Order.decode(message.content).attempt == 1:
            raise RuntimeError("not yet")
        return real(message, context)

    app._registered_funcs["evaluate.default"] = evaluate
    return app


def _load_echo():
    """A client that answers at once, counts its calls in its state and defaces its message."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        counts = context.state.metric_records.get("calls", MetricRecord({"calls": 0}))
        counts["calls"] += 1
        context.state["calls"] = counts
        seen = messages.decode_arrays(messages.arrays_of(message.content))["w"].sum()
        message.content[messages.ARRAYS]["w"].data = b"defaced"
        message.content[messages.RECORD]["round"] = -1
        del message.content[messages.ARRAYS]
        answer = MetricRecord({"calls": counts["calls"], "seen": float(seen)})
        return Message(RecordDict({"answer": answer}), reply_to=message)

    return app


def load_echo():
    return _load_echo()
