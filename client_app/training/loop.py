"""Loop: one training for every network, and the evaluation beside it."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from client_app.training import dice, layout, losses, survival
from client_app.training.batch_norm import rows_needed
from client_app.training.losses import LOSSES
from client_app.training.mixing import Companion
from client_app.training.optimizers import OPTIMIZERS
from client_app.training.orders import batch_sizes, row_orders
from client_app.training.steps import Anchored
from common.config import Settings
from common.errors import ConfigError, DataError
from common.foreign import code
from common.networks import NETWORKS
from common.objectives import USUAL, Phase
from common.tables.measure import NEAR

_EVALUATION_VOLUMES = 16
_EVALUATION_BATCH = 1024  # rows per forward pass; bounds memory, changes no figure
_EVALUATION_IMAGES = 128  # on a CPU: what a convolution makes of so few stays in a core's cache


@dataclass(frozen=True)
class TensorRows:
    """Rows on one device: ``inputs`` (n, *input shape) float32, ``labels`` (n,) int64.

    Of volumes the labels are masks, (n, depth, height, width) bool; quantities are (n,) float32;
    times and events of survival (n, 2) float64.
    """

    inputs: Tensor
    labels: Tensor
    weights: Tensor | None = None
    """(n,) float32: how much each row counts in training; None: all alike."""

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def for_network(
        cls,
        network: nn.Module,
        inputs: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray | None = None,
    ) -> "TensorRows":
        """Return NumPy rows as tensors where a network is, laid out as its filters are."""
        device = next(network.parameters()).device
        last = layout.is_channels_last(network)
        return cls.on(device, inputs, labels, weights, channels_last=last)

    @classmethod
    def on(
        cls,
        device: torch.device,
        inputs: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray | None = None,
        *,
        channels_last: bool = True,
    ) -> "TensorRows":
        """Return NumPy rows as tensors on a device, images channels last unless that is False."""
        rows = torch.from_numpy(inputs).to(device)
        if rows.dim() == 4 and channels_last:
            rows = rows.contiguous(memory_format=torch.channels_last)
        counting = None if weights is None else torch.from_numpy(weights).float().to(device)
        return cls(rows, torch.from_numpy(labels).to(device), counting)


def choose_device(name: str) -> torch.device:
    """Return the device of the setting ``device``; a GPU that is not there is an error."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda"):
        index = int(name.partition(":")[2] or 0)
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if index >= found:
            raise ConfigError(f"device = {name!r}: this machine has {found} GPUs; use device=cpu")
    return torch.device(name)


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Compute on one thread of a CPU, so that a repeat adds in the same order.

    Sums over threads depend on their number, and small models are slower with two (the simulation
    runs one process per core instead).
    """
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def repeatable(device: torch.device, seed: int) -> Iterator[None]:
    """Draw dropout from ``seed`` and add in one order, so that a repeat gives the same numbers."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), one_thread(device):
        if device.type == "cpu":
            # torch.manual_seed also seeds devices that are not there: half a millisecond a time
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        yield


def hushed(settings: Settings) -> AbstractContextManager[None]:
    """Keep what a run's foreign code prints in every batch from the run's own lines."""
    pieces = (NETWORKS, settings.model), (LOSSES, settings.loss), (OPTIMIZERS, settings.optimizer)
    foreign = [f"{table.kind} = {name!r}" for table, name in pieces if table.module_of(name)]
    return code.hushed(" or ".join(foreign)) if foreign else nullcontext()


def train(
    network: nn.Module,
    rows: TensorRows,
    settings: Settings,
    rng: np.random.Generator,
    towards: Anchored | None = None,
    phase: Phase = USUAL,
    companion: Companion | None = None,
) -> float:
    """Run the epochs of a phase in place; return the last one's mean loss.

    The row order of each epoch comes from ``rng``; the last batch may be short, but has as many
    rows as the network needs. The loss is the run's ``loss`` alone, before the (first) step on each
    batch.

    Args:
        network: trained in place.
        rows: to train on.
        settings: epochs, batches, the loss, and the optimiser's own.
        rng: decides the row order.
        towards: what pulls the parameters, if anything does; its anchor may move.
        phase: which parameters stand still, and how many epochs there are.
        companion: what learns beside the network, from each batch before it does.
    """
    optimizer = OPTIMIZERS.named(settings.optimizer).begin(network, settings, phase.frozen)
    loss_of = losses.of_batches(settings, rows.labels, rows.weights)
    steps = 1 if towards is None else towards.pull.steps
    network.train()
    total = torch.zeros((), device=rows.labels.device)
    last = len(rows)
    least = rows_needed(network, rows.inputs, batch_sizes(last, settings))
    for pass_ in row_orders(len(rows), settings, rng, phase.epochs or 0, least):
        order, last = torch.from_numpy(pass_).to(rows.labels.device), len(pass_)
        total.zero_()
        for batch in torch.split(order, batch_sizes(len(order), settings, least)):
            inputs, labels, mean_loss = rows.inputs[batch], rows.labels[batch], loss_of(batch)
            if companion is not None:
                companion.step(inputs, labels, mean_loss)
            for step in range(steps):
                loss = mean_loss(network(inputs), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                with torch.no_grad():
                    optimizer.step(towards)
                if step == 0:
                    total += loss.detach() * len(batch)
            if towards is not None:
                towards.follow(optimizer.values)
    return total.item() / last


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy in nats and accuracy in [0, 1] over some rows.

    Of masks: mean loss and score of Dice, both in [0, 1]. Of quantities: mean squared error, in
    squares of the measure's unit, and share of the rows that are met to half a unit. Of survival:
    mean over the events of Cox's loss, and concordance.
    """

    loss: float
    accuracy: float
    rms_loss: float
    """Root of the mean of the rows' squared losses."""


def evaluate(network: nn.Module, rows: TensorRows) -> Evaluation:
    """Return a network's loss and accuracy on rows, in evaluation mode."""
    return evaluate_parts(network, rows, [len(rows)])[0]


def evaluate_parts(network: nn.Module, rows: TensorRows, sizes: Sequence[int]) -> list[Evaluation]:
    """Return loss and accuracy on each of the parts, of ``sizes`` rows >= 1, that rows consist of.

    The rows pass together, whoever they belong to; only the means are taken apart.
    """
    _refuse_empty(sizes)
    network.eval()
    with torch.inference_mode():
        batches = (torch.split(part, rows_at_once(rows)) for part in (rows.inputs, rows.labels))
        if rows.labels.dim() == 2:
            made = torch.cat([network(inputs) for inputs, _ in zip(*batches, strict=True)])
            return _of_survival(made, rows.labels, sizes)
        found = [_each(network(inputs), labels) for inputs, labels in zip(*batches, strict=True)]
    losses, scores = zip(*found, strict=True)
    return _by_part(torch.cat(losses), torch.cat(scores), sizes)


def outputs(network: nn.Module, inputs: np.ndarray) -> np.ndarray:
    """Return what a network makes of rows, (n, classes), in evaluation mode."""
    rows = TensorRows.for_network(network, inputs, np.zeros(len(inputs), np.int64))
    network.eval()
    with torch.inference_mode():
        made = [network(part) for part in torch.split(rows.inputs, rows_at_once(rows))]
    found: np.ndarray = torch.cat(made).cpu().numpy()
    return found


def evaluate_outputs(outputs: Tensor, labels: Tensor, sizes: Sequence[int]) -> list[Evaluation]:
    """Return the same of outputs (n, classes) that a network gave already."""
    _refuse_empty(sizes)
    return _by_part(*_each(outputs, labels), sizes)


def _refuse_empty(sizes: Sequence[int]) -> None:
    if min(sizes) < 1:
        raise DataError("no held-out rows to evaluate on; give the site some, or do not ask it")


def _of_survival(outputs: Tensor, labels: Tensor, sizes: Sequence[int]) -> list[Evaluation]:
    found = survival.losses_and_concordance(outputs, labels, sizes)
    return [
        Evaluation(loss.mean().item(), score, (loss.double() ** 2).mean().sqrt().item())
        for loss, score in found
    ]


def _by_part(losses: Tensor, scores: Tensor, sizes: Sequence[int]) -> list[Evaluation]:
    means = (_means(values, sizes) for values in (losses, scores, losses.double() ** 2))
    return [
        Evaluation(loss, score, math.sqrt(square))
        for loss, score, square in zip(*means, strict=True)
    ]


def _each(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return loss and score of each row, (n,): whether it is met; of a mask Dice's."""
    if labels.dim() > 1:
        return dice.losses(outputs, labels), dice.scores(outputs, labels)
    if labels.is_floating_point():
        error = outputs[:, 0] - labels
        return error**2, error.abs() <= NEAR
    loss = functional.cross_entropy(outputs, labels, reduction="none")
    return loss, outputs.argmax(1) == labels


def rows_at_once(rows: TensorRows) -> int:
    """Return how many rows pass a network together where nothing is learnt."""
    if rows.inputs.ndim > 4:
        return _EVALUATION_VOLUMES
    is_small = rows.inputs.ndim == 4 and rows.inputs.device.type == "cpu"
    return _EVALUATION_IMAGES if is_small else _EVALUATION_BATCH


def _means(values: Tensor, sizes: Sequence[int]) -> list[float]:
    starts = np.cumsum([0, *sizes[:-1]])
    sums = np.add.reduceat(values.cpu().numpy().astype(np.float64), starts)
    means: list[float] = (sums / sizes).tolist()
    return means


class Stopwatch:
    """Wall seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._start
