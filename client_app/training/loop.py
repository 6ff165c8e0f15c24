"""Loop: one SGD for every network, and the evaluation beside it."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from client_app.training import dice
from common.config import Settings
from common.errors import ConfigError, DataError
from common.objectives import USUAL, Phase, Pull

_EVALUATION_VOLUMES = 16
_EVALUATION_BATCH = 1024  # rows per forward pass; bounds memory, changes no figure
_EVALUATION_IMAGES = 128  # on a CPU: what a convolution makes of so few stays in a core's cache


@dataclass(frozen=True)
class TensorRows:
    """Rows on one device: ``inputs`` (n, *input shape) float32, ``labels`` (n,) int64.

    Of volumes the labels are masks, (n, depth, height, width) bool.
    """

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def on(cls, device: torch.device, inputs: np.ndarray, labels: np.ndarray) -> "TensorRows":
        """Return NumPy rows as tensors on a device, images channels last."""
        rows = torch.from_numpy(inputs).to(device)
        if rows.dim() == 4:
            rows = rows.contiguous(memory_format=torch.channels_last)
        return cls(rows, torch.from_numpy(labels).to(device))


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


def flatten(network: nn.Module) -> Tensor:
    """Make all parameters views of one flat vector, and return that vector.

    Filters of convolutions lie channels last, which a CPU convolves up to half as fast again. The
    layout is decided by the shapes alone, so that a network's numbers do not depend on its past.
    """
    parameters = list(network.parameters())
    values = torch.cat([_channels_last(p.detach()).reshape(-1) for p in parameters])
    start = 0
    for parameter in parameters:
        view = slice(start, start + parameter.numel())
        parameter.data = _shaped(values[view], parameter.shape)
        start = view.stop
    return values


def _channels_last(value: Tensor) -> Tensor:
    """Return the filters (out, in, height, width) as (out, height, width, in); others as is."""
    return value.permute(0, 2, 3, 1) if value.dim() == 4 else value


def _shaped(flat: Tensor, shape: torch.Size) -> Tensor:
    """Return a flat vector's view of a parameter's shape; the inverse of :func:`_channels_last`."""
    if len(shape) != 4:
        return flat.view(shape)
    out, wide, height, width = shape
    return flat.view(out, height, width, wide).permute(0, 3, 1, 2)


class Sgd:
    """SGD with momentum and weight decay over all parameters of a network at once.

    The parameters and their gradients become views of two flat vectors, so that a step is three
    operations however many layers there are. ``torch.optim.SGD`` gives the same numbers bit for
    bit, but its import costs a second, which a site that is started anew for every message would
    pay every time.
    """

    def __init__(
        self, network: nn.Module, settings: Settings, frozen: frozenset[str] = frozenset()
    ) -> None:
        """Take over a network's parameters, of which those named as frozen keep their values."""
        self._settings = settings
        self.values = flatten(network)
        self.gradients = torch.zeros_like(self.values)
        self._momentum = torch.zeros_like(self.values)
        self._still: list[Tensor] = []
        start = 0
        for name, parameter in network.named_parameters():
            view = slice(start, start + parameter.numel())
            parameter.grad = _shaped(self.gradients[view], parameter.shape)
            if name in frozen:
                self._still.append(self.gradients[view])
            start = view.stop

    def step(self, towards: "Anchored | None" = None) -> None:
        """Move the parameters against the gradients that were accumulated, and clear those."""
        settings = self._settings
        if settings.weight_decay:
            self.gradients.add_(self.values, alpha=settings.weight_decay)
        if towards is not None:
            self.gradients.add_(self.values - towards.anchor, alpha=towards.pull.strength)
            if towards.pull.push:
                self.gradients.add_(towards.anchor, alpha=towards.pull.push)
        for gradients in self._still:
            gradients.zero_()
        self._momentum.mul_(settings.momentum).add_(self.gradients)
        self.values.add_(self._momentum, alpha=-settings.learning_rate)
        self.gradients.zero_()


class Anchored:
    """A pull with its anchor as a flat vector (P,) beside a network's parameters."""

    def __init__(self, network: nn.Module, pull: Pull) -> None:
        self.pull = pull
        device = next(network.parameters()).device
        # copy() because a decoded array is a read-only view, which torch warns about
        parts = [torch.from_numpy(pull.anchor[n].copy()) for n, _ in network.named_parameters()]
        self.anchor = torch.cat([_channels_last(part).reshape(-1) for part in parts]).to(device)

    def follow(self, values: Tensor) -> None:
        """Move the anchor towards the parameters, as far as the pull says."""
        if self.pull.follow:
            self.anchor.add_(values - self.anchor, alpha=self.pull.follow)

    def write_to(self, network: nn.Module) -> None:
        """Overwrite a network's parameters with the anchor."""
        start = 0
        with torch.no_grad():
            for parameter in network.parameters():
                view = slice(start, start + parameter.numel())
                parameter.copy_(_shaped(self.anchor[view], parameter.shape))
                start = view.stop


def train(
    network: nn.Module,
    rows: TensorRows,
    settings: Settings,
    rng: np.random.Generator,
    towards: Anchored | None = None,
    phase: Phase = USUAL,
) -> float:
    """Run the epochs of a phase in place; return the last one's mean loss in nats.

    The row order of each epoch comes from ``rng``; the last batch may be short. The loss is the
    cross-entropy alone (of masks, Dice's), before the (first) step on each batch.

    Args:
        network: trained in place.
        rows: to train on.
        settings: epochs, batches and SGD's own.
        rng: decides the row order.
        towards: what pulls the parameters, if anything does; its anchor may move.
        phase: which parameters stand still, and how many epochs there are.
    """
    sgd = Sgd(network, settings, phase.frozen)
    steps = 1 if towards is None else towards.pull.steps
    network.train()
    total = torch.zeros((), device=rows.labels.device)
    for _ in range(phase.epochs or settings.local_epochs):
        order = torch.from_numpy(rng.permutation(len(rows))).to(rows.labels.device)
        total.zero_()
        for batch in torch.split(order, settings.batch_size):
            inputs, labels = rows.inputs[batch], rows.labels[batch]
            for step in range(steps):
                loss = _mean_loss(network(inputs), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                with torch.no_grad():
                    sgd.step(towards)
                if step == 0:
                    total += loss.detach() * len(batch)
            if towards is not None:
                towards.follow(sgd.values)
    return total.item() / len(rows)


def _mean_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    if labels.dim() > 1:
        return dice.losses(outputs, labels).mean()
    return functional.cross_entropy(outputs, labels)


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy in nats and accuracy in [0, 1] over some rows.

    Of masks: mean loss and score of Dice, both in [0, 1].
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
        found = [_each(network(inputs), labels) for inputs, labels in zip(*batches, strict=True)]
    losses, scores = zip(*found, strict=True)
    return _by_part(torch.cat(losses), torch.cat(scores), sizes)


def outputs(network: nn.Module, inputs: np.ndarray) -> np.ndarray:
    """Return what a network makes of rows, (n, classes), in evaluation mode."""
    device = next(network.parameters()).device
    rows = TensorRows.on(device, inputs, np.zeros(len(inputs), np.int64))
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


def _by_part(losses: Tensor, scores: Tensor, sizes: Sequence[int]) -> list[Evaluation]:
    means = (_means(values, sizes) for values in (losses, scores, losses.double() ** 2))
    return [
        Evaluation(loss, score, math.sqrt(square))
        for loss, score, square in zip(*means, strict=True)
    ]


def _each(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return loss and score of each row, (n,): of a class whether it is met, of a mask Dice."""
    if labels.dim() > 1:
        return dice.losses(outputs, labels), dice.scores(outputs, labels)
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
