"""Losses: what the steps of a training make small.

torch is imported by what computes one, not by this file: settings are checked against the names
before anything slow is loaded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from common.config import Settings
from common.errors import ConfigError
from common.plugins import PieceSettings, Table

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOSSES", "ClassWeightSettings", "FocalSettings", "Loss", "of", "takes_by_hand"]

MeanLoss = Callable[["Tensor", "Tensor"], "Tensor"]
"""(what the network makes of n rows, (n, K), their classes, (n,) int64) -> a mean over the rows, a
tensor without axes; of quantities (n, 1) and (n,) float32, scaled; of masks (n, 1, depth, height,
width) and (n, depth, height, width) bool."""


BeginLoss = Callable[[Settings, "Tensor"], MeanLoss]
"""(settings, labels of all rows that are trained on) -> a loss."""


class ClassWeightSettings(PieceSettings):
    """How much the rows of each class count."""

    class_weights: Literal["none", "site"] = Field(
        "none", description="in the loss: as many as they are, or every class of a site alike"
    )

    def check(self, settings: Settings) -> None:
        """Refuse weights where there are no classes, or where the loss does not know them."""
        self.refuse_unused(settings, LOSSES)
        if self.class_weights != "none":
            _require_classes(settings, f"class-weights = {self.class_weights}")


class FocalSettings(PieceSettings):
    """What rows that are told well already still count."""

    focal_gamma: float = Field(
        2.0, ge=0, le=10, description="loss=focal: a row's loss times (1 - probability)^gamma"
    )

    def check(self, settings: Settings) -> None:
        """Refuse it where there are no classes, or another loss."""
        if self.refuse_unused(settings, LOSSES):
            _require_classes(settings, "loss = focal")


def _require_classes(settings: Settings, what: str) -> None:
    from common.data.datasets import has_masks

    if settings.task == "regression" or has_masks(settings.dataset):
        raise ValueError(f"{what}: is for classes, not for quantities and masks; leave it out")


@dataclass(frozen=True)
class Loss:
    """A value of the setting ``loss``."""

    begin: BeginLoss
    by_hand: bool = False
    """Whether the engines that do without autograd minimise it, too."""
    settings: tuple[type[PieceSettings], ...] = ()


def _usual(settings: Settings, labels: "Tensor") -> MeanLoss:
    """Return the cross-entropy in nats, of quantities the squared error, of masks Dice's loss."""
    if settings.of(ClassWeightSettings).class_weights == "none":
        return _mean
    return _weighted(_cross_entropy, labels)


def _focal(settings: Settings, labels: "Tensor") -> MeanLoss:
    """Return the focal loss: Lin et al. 2017, Eq. (4), its alpha from ``class-weights``."""
    gamma = settings.of(FocalSettings).focal_gamma

    def each(outputs: "Tensor", labels: "Tensor") -> "Tensor":
        loss = _cross_entropy(outputs, labels)
        # 1 - p by expm1: near p = 1 the difference would lose its digits
        return (-(-loss).expm1()) ** gamma * loss if gamma else loss

    if settings.of(ClassWeightSettings).class_weights == "none":
        return lambda outputs, labels: each(outputs, labels).mean()
    return _weighted(each, labels)


def _weighted(each: MeanLoss, labels: "Tensor") -> MeanLoss:
    """Return the mean of rows' losses, each times rows / (classes x rows of its class).

    Classes are those that the site has: the weights' mean over its rows is 1.
    """
    counts = labels.bincount()
    present = int((counts > 0).sum())
    weights = len(labels) / (present * counts.clamp(min=1).float())
    return lambda outputs, labels: (weights[labels] * each(outputs, labels)).mean()


def _cross_entropy(outputs: "Tensor", labels: "Tensor") -> "Tensor":
    from torch.nn import functional

    return functional.cross_entropy(outputs, labels, reduction="none")


def _mean(outputs: "Tensor", labels: "Tensor") -> "Tensor":
    from torch.nn import functional

    from client_app.training import dice

    if labels.dim() > 1:
        return dice.losses(outputs, labels).mean()
    if labels.is_floating_point():
        return functional.mse_loss(outputs[:, 0], labels)
    return functional.cross_entropy(outputs, labels)


LOSSES: Table[Loss] = Table(
    "loss",
    "coterie.losses",
    {
        "auto": Loss(_usual, by_hand=True, settings=(ClassWeightSettings,)),
        "focal": Loss(_focal, settings=(ClassWeightSettings, FocalSettings)),
    },
    of=Loss,
    made_of=lambda mean: Loss(lambda settings, labels: mean),
)
"""What ``loss`` can name."""


def takes_by_hand(settings: Settings) -> bool:
    """Return whether a run's loss is the one that the engines without autograd know."""
    weighted = settings.of(ClassWeightSettings).class_weights != "none"
    return LOSSES.named(settings.loss).by_hand and settings.task != "regression" and not weighted


def of(settings: Settings, labels: "Tensor") -> MeanLoss:
    """Return a run's loss; what one from elsewhere gives is checked.

    Args:
        settings: of the run.
        labels: (n,) of all rows that the site trains on, by which classes can be weighted.
    """
    mean = LOSSES.named(settings.loss).begin(settings, labels)
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
