"""Losses: what the steps of a training make small.

torch is imported by what computes one, not by this file: settings are checked against the names
before anything slow is loaded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.config import Settings
from common.errors import ConfigError
from common.plugins import Table

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOSSES", "Loss", "of"]

MeanLoss = Callable[["Tensor", "Tensor"], "Tensor"]
"""(what the network makes of n rows, (n, K), their classes, (n,) int64) -> a mean over the rows, a
tensor without axes; of quantities (n, 1) and (n,) float32, scaled; of masks (n, 1, depth, height,
width) and (n, depth, height, width) bool."""


@dataclass(frozen=True)
class Loss:
    """A value of the setting ``loss``."""

    mean: MeanLoss
    by_hand: bool = False
    """Whether the engines that do without autograd minimise it, too."""


def _usual(outputs: "Tensor", labels: "Tensor") -> "Tensor":
    """Return the cross-entropy in nats, of quantities the squared error, of masks Dice's loss."""
    from torch.nn import functional

    from client_app.training import dice

    if labels.dim() > 1:
        return dice.losses(outputs, labels).mean()
    if labels.is_floating_point():
        return functional.mse_loss(outputs[:, 0], labels)
    return functional.cross_entropy(outputs, labels)


LOSSES: Table[Loss] = Table(
    "loss", "coterie.losses", {"auto": Loss(_usual, by_hand=True)}, of=Loss, made_of=Loss
)
"""What ``loss`` can name."""


def of(settings: Settings) -> MeanLoss:
    """Return a run's loss; what one from elsewhere gives is checked."""
    mean = LOSSES.named(settings.loss).mean
    if not LOSSES.is_foreign(settings.loss):
        return mean

    def checked(outputs: "Tensor", labels: "Tensor") -> "Tensor":
        value = mean(outputs, labels)
        shape = getattr(value, "shape", None)
        if shape is None or len(shape) or not value.requires_grad:
            found = type(value).__name__ if shape is None else f"a tensor of shape {tuple(shape)}"
            raise ConfigError(
                f"loss = {settings.loss!r}: gives {found}; it must give a mean over the rows, a "
                "tensor without axes that has a gradient"
            )
        if not value.isfinite():
            raise ConfigError(
                f"loss = {settings.loss!r}: is {value.item()} in training; lower learning-rate, or "
                "mend it"
            )
        return value

    return checked
