"""ClientApps for tests: Coterie's own, with one site that misbehaves."""

import functools
import math
import os
import signal
import time

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
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


def sends_far(message, context, value=1e10):
    return _resend(message, context, lambda a: {k: v + np.float32(value) for k, v in a.items()})


def sends_as_far_as_floats_go(message, context):
    return sends_far(message, context, 3e38)


def sends_an_unknown_type(message, context):
    reply = real(message, context)
    arrays = reply.content[messages.ARRAYS]
    reply.content[messages.ARRAYS] = ArrayRecord(
        {k: Array("float33", v.shape, v.stype, v.data) for k, v in arrays.items()}
    )
    return reply


def sends_absurd_seconds(message, context):
    reply = real(message, context)
    values = {"cpu_seconds": 1.7e308, "gpu_seconds": 1.7e308, "energy": "shared", "joules": 0.0}
    reply.content[messages.USAGE] = ConfigRecord(values)
    return reply


def sends_half_a_promise(message, context):
    reply = real(message, context)
    values = {"mechanism": "noise", "unit": "rows", "epsilon": math.inf, "delta": 0.0, "rho": 0.5}
    reply.content[messages.NOTE] = ConfigRecord(values | {"spent": 1.0})
    return reply


def raises_without_words(message, context):
    raise RuntimeError(" ")


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


def load_telling_losses_at_the_second_attempt():
    app = load(real)()

    @app.query("loss")
    def loss(message, context):
        if Order.decode(message.content).attempt == 1:
            raise RuntimeError("not yet")
        return real(message, context)

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
