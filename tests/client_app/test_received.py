"""A site trains and evaluates nothing but a model of its run's network, all of it finite."""

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from kinds_of_rows import rows_of

from client_app.app import app
from common import messages, models
from common.config import Settings
from common.errors import MessageError
from common.messages import Order
from deploy.simulation.grid import InProcessGrid, load_client_app

SETTINGS = Settings.parse(
    {
        "dataset": "synthetic",
        "synthetic-rows": 40,
        "split": "by-user",
        "num-clients": 2,
        "model": "mlp",
        "strategy": "fedavg",
        "device": "cpu",
    }
)
MODEL = models.initial_parameters(SETTINGS, rows_of(14), 2)
FIRST = next(iter(MODEL))


def with_entry(value):
    array = MODEL[FIRST].copy()
    array.flat[3] = value
    return MODEL | {FIRST: array}


BAD = {
    "NaN": with_entry(np.nan),
    "inf": with_entry(np.inf),
    "shape": MODEL | {FIRST: MODEL[FIRST].T.copy()},
    "type": MODEL | {FIRST: MODEL[FIRST].astype(np.float64)},
    "another array": MODEL | {"more": MODEL[FIRST]},
    "an array fewer": {name: value for name, value in MODEL.items() if name != FIRST},
    "none": {},
}


@pytest.fixture(scope="module")
def context():
    with InProcessGrid(load_client_app, SETTINGS.to_dict(), num_nodes=2, workers=1) as grid:
        yield grid._contexts[2]


def ask(kind, model, context):
    content = messages.content(Order(1, 1, 0), messages.encode_arrays(model))
    return app(Message(content, 2, kind), context)


@pytest.mark.parametrize("kind", [messages.TRAIN, messages.EVALUATE, messages.LOSS])
def test_a_model_of_the_run_is_used(task_identity, context, kind):
    assert ask(kind, MODEL, context).has_content()


@pytest.mark.parametrize("kind", [messages.TRAIN, messages.EVALUATE, messages.LOSS])
@pytest.mark.parametrize("case", BAD)
def test_any_other_is_refused(task_identity, context, case, kind):
    with pytest.raises(MessageError, match="site site-0: "):
        ask(kind, BAD[case], context)


def test_malformed_questions_are_refused(task_identity, context):
    content = RecordDict(dict(messages.content(Order(1, 1, 0))))
    content["more"] = messages.encode_arrays(MODEL)
    with pytest.raises(MessageError, match="'more'"):
        app(Message(content, 2, messages.TRAIN), context)
