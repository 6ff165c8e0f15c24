"""Steps of :mod:`client_app.training.dense` in NumPy, where nothing compiles."""

import functools
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from client_app.training.dense_layers import (
    DenseShape,
    Draw,
    Floats,
    Frozen,
    Ints,
    rule_of,
    scales_of,
    thresholds_of,
)
from client_app.training.optimizers import Rule, SgdSettings
from common.config import Settings
from common.objectives import Pull


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


class DenseNumpy:
    """Steps in NumPy, which move ``values`` and ``anchor`` where they are."""

    def __init__(
        self, shape: DenseShape, settings: Settings, values: Floats, anchor: Floats
    ) -> None:
        self._shape = shape
        self._settings = settings
        self._values, self._anchor = values, anchor
        self._gradients = np.empty_like(values)
        self._momentum = np.empty_like(values)
        self._squares = np.empty_like(values)
        self._still = np.empty(len(values), np.bool_)
        self._taken = 0
        self._rule = rule_of(settings)
        self._share = settings.of(SgdSettings).momentum
        self._scratch = np.empty_like(values)
        self._weights, self._biases = _layers(values, shape.widths)
        self._weight_gradients, self._bias_gradients = _layers(self._gradients, shape.widths)
        both = zip(self._weight_gradients, self._bias_gradients, strict=True)
        self._arrays_of_gradients = [gradients for layer in both for gradients in layer]
        self._frozen_gradients: list[Floats] = []
        self._scales, self._thresholds = scales_of(shape), thresholds_of(shape)
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
        self._squares.fill(0)
        self._taken = 0
        self._still = np.repeat(
            np.asarray(frozen, np.bool_), [part.size for part in self._arrays_of_gradients]
        )
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
        """One step of the run's optimiser, as :mod:`client_app.training.steps` takes it."""
        if self._settings.weight_decay and self._rule is not Rule.ADAMW:
            np.multiply(self._values, np.float32(self._settings.weight_decay), out=self._scratch)
            np.add(self._gradients, self._scratch, out=self._gradients)
        if pull is not None:
            np.subtract(self._values, self._anchor, out=self._scratch)
            np.multiply(self._scratch, np.float32(pull.strength), out=self._scratch)
            np.add(self._gradients, self._scratch, out=self._gradients)
        if pull is not None and pull.push:
            np.multiply(self._anchor, np.float32(pull.push), out=self._scratch)
            np.add(self._gradients, self._scratch, out=self._gradients)
        if self._rule is Rule.SGD:
            self._move_by_momentum()
        else:
            self._move_by_adam()

    def _move_by_momentum(self) -> None:
        """Polyak's, the decay in the gradient."""
        for gradients in self._frozen_gradients:
            gradients.fill(0)
        direction = self._gradients
        if self._share:
            direction = self._momentum
            np.multiply(direction, np.float32(self._share), out=direction)
            np.add(direction, self._gradients, out=direction)
        np.multiply(direction, np.float32(self._settings.learning_rate), out=self._scratch)
        np.subtract(self._values, self._scratch, out=self._values)

    def _move_by_adam(self) -> None:
        """Adam or AdamW with torch's constants: Kingma & Ba 2015, Algorithm 1."""
        rate, kept = self._settings.learning_rate, 1.0
        if self._rule is Rule.ADAMW:
            kept -= rate * self._settings.weight_decay
        self._taken += 1
        self._momentum += np.float32(0.1) * (self._gradients - self._momentum)
        self._squares *= np.float32(0.999)
        self._squares += np.float32(0.001) * self._gradients * self._gradients
        root = np.float32((1 - 0.999**self._taken) ** 0.5)
        size = np.float32(rate / (1 - 0.9**self._taken))
        moved = np.float32(kept) * self._values
        moved -= size * self._momentum / (np.sqrt(self._squares) / root + np.float32(1e-8))
        np.copyto(self._values, moved, where=~self._still)


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
