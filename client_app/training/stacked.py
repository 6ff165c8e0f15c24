"""Stacked clients: trained side by side in one network, for a GPU that small ones leave idle.

Dense layers of n clients are one batched product, convolutions one convolution in n groups, and one
call of autograd gives all gradients. Every step has the same shapes (short batches are filled up
with rows that count nothing, clients that have finished stand still), so that on a GPU it is
captured once as a CUDA graph and then replayed: a step costs one launch instead of some hundred.

Each client has its own row order, as in :mod:`client_app.training.loop`; the results are equal up
to the rounding of sums. Networks with dropout or batch norm are not for here.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from client_app.training.loop import TensorRows, one_thread
from client_app.training.optimizers import SgdSettings
from common.config import Settings
from common.messages import Parameters

MOST_CLIENTS = 32
"""In a stack; more of them are trained stack by stack."""

_KNOWN = nn.Conv2d | nn.Linear | nn.ReLU | nn.MaxPool2d | nn.Flatten
# Before the capture: torch picks algorithms and makes its buffers in them.
_WARM_UP_STEPS = 3


def can_stack(network: nn.Module) -> bool:
    """Return whether a network is a sequence of layers that can be stacked."""
    return isinstance(network, nn.Sequential) and all(
        isinstance(layer, _KNOWN)
        and (not isinstance(layer, nn.Conv2d | nn.Linear) or layer.bias is not None)
        and (not isinstance(layer, nn.Conv2d) or (layer.groups, layer.padding_mode) == (1, "zeros"))
        for layer in network
    )


@dataclass(frozen=True)
class StackedPlan:
    """Which rows each client trains on in each step."""

    rows: NDArray[np.int64]
    """(steps, n, batch) positions among all rows; any where there is no row."""
    sizes: NDArray[np.int64]
    """(steps, n): how many of the batch count; 0 for a client that has finished."""
    counted: NDArray[np.int64]
    """(steps, n): 1 in a client's last epoch, whose loss is reported."""


def stacked_plan(
    rows: Sequence[np.ndarray], orders: Sequence[np.random.Generator], settings: Settings, n: int
) -> StackedPlan:
    """Return the steps of n clients, of which those without ``rows`` stand still throughout."""
    batch, epochs = settings.batch_size, settings.local_epochs
    per_epoch = [-(-len(mine) // batch) for mine in rows]
    shape = epochs * max(per_epoch), n
    positions, sizes = np.zeros((*shape, batch), np.int64), np.zeros(shape, np.int64)
    counted = np.zeros(shape, np.int64)
    for client, (mine, order, steps) in enumerate(zip(rows, orders, per_epoch, strict=True)):
        for epoch in range(epochs):
            shuffled = mine[order.permutation(len(mine))]
            for step in range(steps):
                part = shuffled[step * batch : (step + 1) * batch]
                at = epoch * steps + step, client
                positions[at][: len(part)] = part
                sizes[at] = len(part)
        counted[(epochs - 1) * steps : epochs * steps, client] = 1
    return StackedPlan(positions, sizes, counted)


@dataclass(frozen=True)
class StackedSgd:
    """What is the same in all rounds of a run; a stack is made once for it, and captured."""

    batch_size: int
    momentum: float
    weight_decay: float

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return a run's."""
        momentum = settings.of(SgdSettings).momentum
        return cls(settings.batch_size, momentum, settings.weight_decay)


class Stack:
    """n copies of a network and what a step needs, in memory that stays where it is."""

    def __init__(self, network: nn.Module, n: int, rows: TensorRows, sgd: "StackedSgd") -> None:
        """Make the copies.

        Args:
            network: says which layers there are; its own parameters are not used.
            n: clients.
            rows: of which all clients' rows are some, on the device that trains.
            sgd: batches and SGD's own.
        """
        self._layers = list(network.named_children())
        self._n = n
        self._all = rows
        self._sgd = sgd
        self._device = device = rows.labels.device
        self._values = {
            name: torch.zeros((n, *value.shape), device=device, requires_grad=True)
            for name, value in network.named_parameters()
        }
        self._momenta = {name: torch.zeros_like(value) for name, value in self._values.items()}
        self._rows = torch.zeros((n, sgd.batch_size), dtype=torch.int64, device=device)
        self._sizes, self._counted = torch.zeros((2, n), dtype=torch.int64, device=device)
        self._losses = torch.zeros(n, device=device)
        self._rate = torch.zeros((), device=device)
        self._positions = torch.arange(sgd.batch_size, device=device)
        self._step = self._captured() if device.type == "cuda" else self._take_step

    def train(
        self, parameters: Parameters, steps: StackedPlan, learning_rate: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return each client's parameters (n, P), and its summed loss over the last epoch (n,)."""
        with torch.no_grad():
            self._rate.fill_(learning_rate)
            for name, value in self._values.items():
                value.copy_(torch.from_numpy(parameters[name].copy()).expand_as(value))
                self._momenta[name].zero_()
            self._losses.zero_()
        rows, sizes, counted = (
            torch.from_numpy(part).to(self._device)
            for part in (steps.rows, steps.sizes, steps.counted)
        )
        with one_thread(self._device):
            for step in range(len(rows)):
                self._rows.copy_(rows[step])
                self._sizes.copy_(sizes[step])
                self._counted.copy_(counted[step])
                self._step()
        values = [self._values[name].detach().flatten(1) for name in parameters]
        return torch.cat(values, dim=1).cpu().numpy(), self._losses.cpu().numpy()

    def _captured(self) -> Callable[[], None]:
        """Return a step as a CUDA graph; no client has a row yet, so that nothing moves."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_STEPS):
                self._take_step()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._take_step()
        replay: Callable[[], None] = graph.replay
        return replay

    def _take_step(self) -> None:
        """Move every client by its batch."""
        here = self._positions < self._sizes[:, None]  # (n, batch)
        outputs = self._outputs(self._all.inputs[self._rows])
        each = functional.cross_entropy(
            outputs.flatten(0, 1), self._all.labels[self._rows].flatten(), reduction="none"
        ).view_as(here)
        summed = torch.where(here, each, 0.0).sum(1)
        means = summed / self._sizes.clamp(min=1)
        gradients = torch.autograd.grad(means.sum(), list(self._values.values()))
        rates = self._rate * (self._sizes > 0)
        with torch.no_grad():
            self._losses.add_(summed * self._counted)
            for (name, value), gradient in zip(self._values.items(), gradients, strict=True):
                if self._sgd.weight_decay:
                    gradient = gradient + self._sgd.weight_decay * value
                momentum = self._momenta[name].mul_(self._sgd.momentum).add_(gradient)
                value.sub_(momentum * rates.view(-1, *(1,) * (value.dim() - 1)))

    def _outputs(self, inputs: Tensor) -> Tensor:
        """Return the logits (n, batch, classes) of inputs (n, batch, *input shape).

        Images on their way are (batch, n * channels, height, width).
        """
        n, values = self._n, inputs
        for name, layer in self._layers:
            if values.dim() == 5 and not isinstance(layer, nn.Flatten):
                values = values.transpose(0, 1).flatten(1, 2)
            if isinstance(layer, nn.Conv2d):
                weights, biases = self._values[f"{name}.weight"], self._values[f"{name}.bias"]
                values = functional.conv2d(
                    values,
                    weights.flatten(0, 1),
                    biases.flatten(),
                    stride=layer.stride,
                    padding=layer.padding,
                    dilation=layer.dilation,
                    groups=n,
                )
            elif isinstance(layer, nn.Linear):
                weights, biases = self._values[f"{name}.weight"], self._values[f"{name}.bias"]
                values = torch.baddbmm(biases[:, None], values, weights.transpose(1, 2))
            elif isinstance(layer, nn.Flatten):
                if values.dim() == 4:
                    values = values.view(len(values), n, -1).transpose(0, 1)
                values = values.flatten(2)
            else:
                values = layer(values)
        return values


@dataclass(frozen=True)
class _Data:
    """Rows in the memory of this process, told apart by where they are."""

    inputs: np.ndarray
    labels: np.ndarray

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Data) and self.inputs is other.inputs

    def __hash__(self) -> int:
        return id(self.inputs)


@functools.lru_cache(maxsize=1)
def _on_device(data: _Data, device: torch.device) -> TensorRows:
    return TensorRows.on(device, data.inputs, data.labels)


@functools.lru_cache(maxsize=8)
def _stack(network: nn.Module, n: int, data: _Data, device: torch.device, sgd: StackedSgd) -> Stack:
    return Stack(network, n, _on_device(data, device), sgd)


def train(
    network: nn.Module,
    parameters: Parameters,
    data: tuple[np.ndarray, np.ndarray],
    rows: Sequence[np.ndarray],
    orders: Sequence[np.random.Generator],
    settings: Settings,
    device: torch.device,
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return the models (n, P) of n clients and their mean losses over the last epoch (n,).

    Args:
        network: of which :func:`can_stack` is true; the same object every time.
        parameters: that all start from.
        data: inputs and labels of all clients; the same objects every time.
        rows: of each client, positions in the data.
        orders: of each client, decides the order of its rows in each epoch.
        settings: of the run.
        device: that trains.
    """
    lengths = np.array([len(mine) for mine in rows])
    # Those who take as many steps side by side: a stack lasts as long as its longest client.
    by_length = np.argsort(-lengths, kind="stable")
    values = np.empty((len(rows), sum(v.size for v in parameters.values())), np.float32)
    losses = np.empty(len(rows))
    for start in range(0, len(rows), MOST_CLIENTS):
        chosen = by_length[start : start + MOST_CLIENTS]
        n = 1 << (len(chosen) - 1).bit_length()  # few sizes, each of which is captured once
        stack = _stack(network, n, _Data(*data), device, StackedSgd.of(settings))
        steps = stacked_plan([rows[i] for i in chosen], [orders[i] for i in chosen], settings, n)
        found, sums = stack.train(parameters, steps, settings.learning_rate)
        values[chosen], losses[chosen] = found[: len(chosen)], sums[: len(chosen)]
    return values, losses / lengths
