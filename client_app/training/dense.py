"""SGD for networks of dense layers with gradients written by hand, in C or in NumPy.

A step of a small network costs less than autograd's bookkeeping for it. This is equal to the loop
in :mod:`client_app.training.loop` within 1e-5 (the same sums, taken in another order), with its
order of rows and its dropout masks, until a number before ReLU is so close to 0 that rounding
decides its sign. ``docs/results/engine.md`` says how much faster, and how often that is.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from client_app.training import compiler, dense_c
from client_app.training.optimizers import SgdSettings
from client_app.training.orders import row_orders
from common.config import Settings
from common.dropout import dropout_threshold
from common.objectives import Pull

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bits = NDArray[np.int16]
Frozen = NDArray[np.int32]
"""(arrays,) 0 or 1: whether each of the parameters' arrays, in their order, stands still."""
Draw = Callable[[int], Bits]
"""Number of units -> random bits for each; :func:`common.dropout.dropout_threshold` decides."""


@dataclass(frozen=True)
class DenseShape:
    """Dense layers with ReLU between them, and dropout after each ReLU where it is above 0."""

    widths: tuple[int, ...]
    """Inputs, hidden layers, classes."""
    dropout: tuple[float, ...]
    """One probability in [0, 1) per hidden layer."""

    def __post_init__(self) -> None:
        assert len(self.widths) >= 2
        assert len(self.dropout) == len(self.widths) - 2
        assert all(0 <= p < 1 for p in self.dropout)

    @property
    def num_parameters(self) -> int:
        """Weights and biases."""
        return sum((wide + 1) * out for wide, out in pairwise(self.widths))


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


class DenseSgd:
    """Trains one client after the other in the same buffers.

    ``values`` is the flat vector (P,) of all parameters: per layer the weights (out, in), then the
    biases, which is the order of a state dict. Without ``compiled`` steps it takes those in NumPy.
    """

    def __init__(
        self, shape: DenseShape, settings: Settings, compiled: dense_c.DenseSteps | None = None
    ) -> None:
        self.values = np.empty(shape.num_parameters, np.float32)
        self.anchor = np.zeros_like(self.values)
        """Of the pull, if there is one: flat as ``values``; where it moved to after training."""
        self._settings = settings
        self._moving: Frozen = np.zeros(2 * (len(shape.widths) - 1), np.int32)
        self._steps: _Compiled | _InNumpy
        if compiled is not None and len(shape.widths) <= dense_c.MOST_LAYERS:
            self._steps = _Compiled(shape, settings, self.values, self.anchor, compiled)
        else:
            self._steps = _InNumpy(shape, settings, self.values, self.anchor)

    def train(
        self,
        inputs: Floats,
        labels: Ints,
        rows: Ints,
        rng: np.random.Generator,
        draw: Draw,
        pull: Pull | None = None,
        epochs: int = 0,
        frozen: Frozen | None = None,
    ) -> float:
        """Run SGD on ``values``; return the last epoch's mean loss in nats.

        Args:
            inputs: (n, inputs), of which ``rows`` are the client's.
            labels: (n,) likewise.
            rows: (m,) the client's rows.
            rng: decides the row order of each epoch, as in :func:`client_app.training.loop.train`.
            draw: gives the dropout bits of one layer and batch.
            pull: what pulls the parameters, if anything does.
            epochs: passes over the rows; 0: ``local-epochs`` or ``local-steps``.
            frozen: for each array, whether it stands still; None: none does.
        """
        if pull is not None:
            np.concatenate([value.reshape(-1) for value in pull.anchor.values()], out=self.anchor)
        if frozen is None:
            frozen = self._moving
        orders = [rows[each] for each in row_orders(len(rows), self._settings, rng, epochs)]
        return self._steps.train(inputs, labels, orders, draw, pull, frozen) / len(orders[-1])


class _Compiled:
    """Steps in C, which have parameters in an order of their own."""

    def __init__(
        self,
        shape: DenseShape,
        settings: Settings,
        values: Floats,
        anchor: Floats,
        compiled: dense_c.DenseSteps,
    ) -> None:
        self._settings = settings
        self._values, self._anchor = values, anchor
        self._compiled = compiled
        pairs = zip(shape.widths[1:], shape.dropout, strict=False)
        self._dropped = [wide for wide, probability in pairs if probability]
        self._scales, self._thresholds = _scales(shape), _thresholds(shape)
        self._network = (
            len(shape.widths) - 1,
            np.array(shape.widths, np.int32),
            settings.batch_size,
        )
        size = compiled.space(*self._network)
        self._space = compiler.memory_for(size, compiled.lanes)

    def train(
        self,
        inputs: Floats,
        labels: Ints,
        orders: Iterable[Ints],
        draw: Draw,
        pull: Pull | None,
        frozen: Frozen,
    ) -> float:
        """Take the steps of all epochs; return the last one's summed loss."""
        pulled, total = pull is not None, 0.0
        own = (*self._network, self._space, self._values, self._anchor)
        self._compiled.exchange(*own, pulled, True)
        for order in orders:
            total = self._epoch(inputs, labels, order, draw, pull, frozen)
        self._compiled.exchange(*own, pulled, False)
        return total

    def _epoch(
        self,
        inputs: Floats,
        labels: Ints,
        order: Ints,
        draw: Draw,
        pull: Pull | None,
        frozen: Frozen,
    ) -> float:
        """Take all steps of an epoch at once; return its summed loss."""
        settings, size = self._settings, self._settings.batch_size
        steps = [min(size, len(order) - at) for at in range(0, len(order), size)]
        # All at once: step by step would draw the same words, a call for each layer.
        units = sum(-(-step * wide // 4) * 4 for step in steps for wide in self._dropped)
        repeats = 1 if pull is None else pull.steps
        return self._compiled.train(
            *self._network,
            self._space,
            inputs,
            labels,
            order,
            len(order),
            draw(units * repeats),
            self._scales,
            self._thresholds,
            settings.learning_rate,
            settings.of(SgdSettings).momentum,
            settings.weight_decay,
            0.0 if pull is None else pull.strength,
            repeats,
            0.0 if pull is None else pull.follow,
            0.0 if pull is None else pull.push,
            frozen,
        )


class _InNumpy:
    """Steps in NumPy, which move ``values`` and ``anchor`` where they are."""

    def __init__(
        self, shape: DenseShape, settings: Settings, values: Floats, anchor: Floats
    ) -> None:
        self._shape = shape
        self._settings = settings
        self._values, self._anchor = values, anchor
        self._gradients = np.empty_like(values)
        self._momentum = np.empty_like(values)
        self._share = settings.of(SgdSettings).momentum
        self._scratch = np.empty_like(values)
        self._weights, self._biases = _layers(values, shape.widths)
        self._weight_gradients, self._bias_gradients = _layers(self._gradients, shape.widths)
        both = zip(self._weight_gradients, self._bias_gradients, strict=True)
        self._arrays_of_gradients = [gradients for layer in both for gradients in layer]
        self._frozen_gradients: list[Floats] = []
        self._scales, self._thresholds = _scales(shape), _thresholds(shape)
        rows = settings.batch_size
        self._ones = np.ones(rows, np.float32)
        self._positions = np.arange(rows)
        # of layer l: what goes into it, and the loss's derivative by that
        self._activations = [np.empty((rows, wide), np.float32) for wide in shape.widths]
        self._deltas = [np.empty((rows, wide), np.float32) for wide in shape.widths]
        self._positive = [np.empty((rows, wide), np.bool_) for wide in shape.widths]

    def train(
        self,
        inputs: Floats,
        labels: Ints,
        orders: Iterable[Ints],
        draw: Draw,
        pull: Pull | None,
        frozen: Frozen,
    ) -> float:
        """Take the steps of all epochs; return the last one's summed loss."""
        size, total = self._settings.batch_size, 0.0
        self._momentum.fill(0)
        still = zip(self._arrays_of_gradients, frozen, strict=True)
        self._frozen_gradients = [gradients for gradients, stands in still if stands]
        # What diverges becomes inf or NaN without a word, as in torch; the guard names the site.
        with np.errstate(all="ignore"), _blas().limit(limits=1, user_api="blas"):
            for order in orders:
                total = 0.0
                for start in range(0, len(order), size):
                    batch = order[start : start + size]
                    total += self._step(inputs, labels[batch], batch, draw, pull)
                    if pull is not None:
                        self._follow(inputs, labels[batch], batch, draw, pull)
        return total

    def _follow(
        self,
        inputs: Floats,
        labels: Ints,
        batch: Ints,
        draw: Draw,
        pull: Pull,
    ) -> None:
        """Take the steps on a batch that a pull asks for after the first; move its anchor."""
        for _ in range(1, pull.steps):
            self._step(inputs, labels, batch, draw, pull)
        if pull.follow:
            np.subtract(self._values, self._anchor, out=self._scratch)
            np.multiply(self._scratch, np.float32(pull.follow), out=self._scratch)
            np.add(self._anchor, self._scratch, out=self._anchor)

    def _step(
        self,
        inputs: Floats,
        labels: Ints,
        batch: Ints,
        draw: Draw,
        pull: Pull | None,
    ) -> float:
        """Move the parameters by one batch; return its summed loss before that."""
        size = len(batch)
        activations = [buffer[:size] for buffer in self._activations]
        np.take(inputs, batch, axis=0, out=activations[0], mode="clip")
        factors = self._forward(activations, draw)
        deltas = [buffer[:size] for buffer in self._deltas]
        loss = self._loss(activations[-1], labels, deltas[-1])
        self._backward(activations, deltas, factors)
        self._move(pull)
        return loss

    def _forward(self, activations: list[Floats], draw: Draw) -> list[Floats | None]:
        """Fill the activations, the logits last; return each hidden layer's dropout factors."""
        factors: list[Floats | None] = []
        for layer, (weights, biases) in enumerate(zip(self._weights, self._biases, strict=True)):
            out = activations[layer + 1]
            np.matmul(activations[layer], weights.T, out=out)
            np.add(out, biases, out=out)
            if layer < len(self._shape.dropout):
                np.maximum(out, 0, out=out)
                probability = self._shape.dropout[layer]
                factor = self._factor(layer, out.shape, draw) if probability else None
                if factor is not None:
                    np.multiply(out, factor, out=out)
                factors.append(factor)
        return factors

    def _factor(self, layer: int, shape: tuple[int, ...], draw: Draw) -> Floats:
        """Return the dropout factors of a layer, 0 or 1 / (1 - probability)."""
        kept = draw(shape[0] * shape[1]).reshape(shape) >= self._thresholds[layer]
        factor: Floats = kept * self._scales[layer]
        return factor

    def _loss(self, logits: Floats, labels: Ints, delta: Floats) -> float:
        """Return the summed cross-entropy; fill (softmax - one-hot) / rows, its derivative."""
        at_label = self._positions[: len(labels)], labels
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=delta)
        sums = delta.sum(axis=1, keepdims=True)
        loss = float(np.log(sums).sum() - logits[at_label].sum())
        delta /= sums
        delta[at_label] -= 1
        delta *= np.float32(1 / len(labels))
        return loss

    def _backward(
        self, activations: list[Floats], deltas: list[Floats], factors: list[Floats | None]
    ) -> None:
        for layer in reversed(range(len(self._weights))):
            delta, below = deltas[layer + 1], activations[layer]
            np.matmul(delta.T, below, out=self._weight_gradients[layer])
            np.matmul(self._ones[: len(delta)], delta, out=self._bias_gradients[layer])
            if layer == 0:
                break
            np.matmul(delta, self._weights[layer], out=deltas[layer])
            # what ReLU or dropout made 0 passes nothing back
            positive = np.greater(below, 0, out=self._positive[layer][: len(delta)])
            np.multiply(deltas[layer], positive, out=deltas[layer])
            factor = factors[layer - 1]
            if factor is not None:
                np.multiply(deltas[layer], factor, out=deltas[layer])

    def _move(self, pull: Pull | None) -> None:
        """One step of SGD with momentum and weight decay, as ``training.Sgd`` takes it."""
        settings = self._settings
        if settings.weight_decay:
            np.multiply(self._values, np.float32(settings.weight_decay), out=self._scratch)
            np.add(self._gradients, self._scratch, out=self._gradients)
        if pull is not None:
            np.subtract(self._values, self._anchor, out=self._scratch)
            np.multiply(self._scratch, np.float32(pull.strength), out=self._scratch)
            np.add(self._gradients, self._scratch, out=self._gradients)
        if pull is not None and pull.push:
            np.multiply(self._anchor, np.float32(pull.push), out=self._scratch)
            np.add(self._gradients, self._scratch, out=self._gradients)
        for gradients in self._frozen_gradients:
            gradients.fill(0)
        direction = self._gradients
        if self._share:
            direction = self._momentum
            np.multiply(direction, np.float32(self._share), out=direction)
            np.add(direction, self._gradients, out=direction)
        np.multiply(direction, np.float32(settings.learning_rate), out=self._scratch)
        np.subtract(self._values, self._scratch, out=self._values)


def _scales(shape: DenseShape) -> NDArray[np.float32]:
    """Return by how much each layer's kept units grow; 1 where it drops none."""
    return np.array([1 / (1 - p) for p in (*shape.dropout, 0.0)], np.float32)


def _thresholds(shape: DenseShape) -> NDArray[np.int16]:
    """Return the least bits of a unit that is kept, for each layer."""
    return np.array([dropout_threshold(p) for p in (*shape.dropout, 0.0)], np.int16)


def _layers(flat: Floats, widths: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """Return views of the weights (out, in) and biases (out,) of every layer."""
    weights, biases = [], []
    start = 0
    for wide, out in pairwise(widths):
        weights.append(flat[start : start + out * wide].reshape(out, wide))
        start += out * wide
        biases.append(flat[start : start + out])
        start += out
    return weights, biases
