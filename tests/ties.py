"""How near a training came to a tie, which rounding decides.

Two ways to take the same training in float32 differ by 1e-7 to 1e-6 in every number, until two
numbers in a window of max-pooling, or a number and 0 before ReLU, are that close: then one goes
left and the other right, and their models part by much more (``benchmarks/rounding.py``). So what
is compared to 1e-5 must be a training that never came so close, on this processor or another.
"""

import drawn
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from client_app.training import loop
from client_app.training.engine import Lesson
from client_app.training.loop import TensorRows
from common import models
from common.config import Settings
from common.messages import Parameters

NEAR = 1e-6
"""Nearer than this, the rounding of the numbers before may decide."""


def watched(network: nn.Module) -> list[float]:
    """Return a list that gets the smallest gap that decided, in each layer and forward pass."""
    gaps = [np.inf]

    def before_relu(_, inputs):
        values = inputs[0].detach().abs()
        gaps.extend(values[values > 0].flatten().sort().values[:1].tolist())

    def before_pooling(_, inputs):
        windows = functional.unfold(inputs[0].detach().flatten(0, 1)[:, None], 2, stride=2)
        first, second = windows.topk(2, dim=1).values.unbind(1)
        # ReLU comes after: of a window without a positive number nothing is passed on.
        gap = (first - second)[(first > 0) & (first > second)]
        gaps.extend(gap.sort().values[:1].tolist())

    for layer in network.modules():
        if isinstance(layer, nn.ReLU):
            layer.register_forward_pre_hook(before_relu)
        if isinstance(layer, nn.MaxPool2d):
            layer.register_forward_pre_hook(before_pooling)
    return gaps


def nearest(first: Parameters, lesson: Lesson, settings: Settings) -> float:
    """Return the smallest gap that decided anything in a client's training, taken in float64."""
    network = drawn.network(
        settings.model, lesson.network_inputs.shape, lesson.num_outputs
    ).double()
    models.load_parameters(network, {k: v.astype(np.float64) for k, v in first.items()})
    inputs = lesson.inputs[lesson.rows].astype(np.float64)
    rows = TensorRows.on(torch.device("cpu"), inputs, lesson.labels[lesson.rows])
    gaps = watched(network)
    with loop.repeatable(torch.device("cpu"), lesson.dropout_seed):
        loop.train(network, rows, settings, lesson.order)
    return min(gaps)
