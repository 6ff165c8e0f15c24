"""Shared parts: phases of FedRep and FedBABU against autograd on what may move."""

from dataclasses import replace

import drawn
import numpy as np
import torch
from kinds_of_rows import kind_of, rows_of
from torch.nn import functional

from client_app.training import engine
from client_app.training.engine import Lesson
from client_app.training.optimizers import SgdSettings
from common import models
from common.config import Settings
from common.objectives import OBJECTIVES, USUAL


def lesson():
    rng = np.random.default_rng(5)
    inputs = rng.normal(size=(60, 12)).astype(np.float32)
    return Lesson(
        inputs,
        rng.integers(0, 4, 60),
        np.arange(60),
        np.random.default_rng(3),
        7,
        4,
        kind=kind_of(inputs),
    )


def learn(objective, **changes):
    values = {"model": "mlp", "local-epochs": 2, "objective": objective, "weight-decay": 0.01}
    configured = Settings.parse(values | changes)

    def fit(start, pull=None, phase=USUAL):
        again = replace(lesson(), order=np.random.default_rng(3))
        return engine.fit(start, again, configured, pull, phase)

    first = models.initial_parameters(configured, rows_of(12), 4)
    return first, OBJECTIVES[objective].learn(first, None, fit, configured), configured


def by_autograd(start, moves, epochs, configured):
    network = drawn.network("mlp", (12,), 4)
    models.load_parameters(network, start)
    optimiser = torch.optim.SGD(
        [p for name, p in network.named_parameters() if name.startswith("output.") == moves],
        lr=configured.learning_rate,
        momentum=configured.of(SgdSettings).momentum,
        weight_decay=configured.weight_decay,
    )
    x, y = (torch.from_numpy(part) for part in (lesson().inputs, lesson().labels))
    rng = np.random.default_rng(3)
    for _ in range(epochs):
        for batch in torch.split(torch.from_numpy(rng.permutation(len(y))), 16):
            optimiser.zero_grad()
            functional.cross_entropy(network(x[batch]), y[batch]).backward()
            optimiser.step()
    return models.parameters_of(network)


def close(one, other):
    for name in one:
        np.testing.assert_allclose(one[name], other[name], atol=2e-6, err_msg=name)


def test_fedrep_trains_the_head_and_then_the_body():
    first, learned, configured = learn("fedrep", **{"head-epochs": 3})
    expected = by_autograd(by_autograd(first, True, 3, configured), False, 2, configured)
    close(learned.shared, expected)


def test_fedbabu_trains_the_body_under_the_first_head():
    first, learned, configured = learn("fedbabu")
    close(learned.shared, by_autograd(first, False, 2, configured))
    for name in ("output.weight", "output.bias"):
        assert np.array_equal(learned.shared[name], first[name])
