"""Optimisers: what a site's steps are made by.

torch is imported by what begins a training, not by this file: settings are checked against the
names before anything slow is loaded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from pydantic import Field

from common.config import Training
from common.plugins import PieceSettings, Table

if TYPE_CHECKING:
    from torch import nn

    from client_app.training.steps import Steps

__all__ = ["OPTIMIZERS", "Optimizer", "Rule", "SgdSettings", "TorchFactory"]

Begin = Callable[["nn.Module", Training, frozenset[str]], "Steps"]
"""(network, settings with the round's learning rate, frozen parameters) -> steps on it."""

TorchFactory = Callable[..., Any]
"""(parameters, lr=..., weight_decay=...) -> an ``Optimizer``, as torch's classes."""


class SgdSettings(PieceSettings):
    """The memory of SGD; other optimisers have constants of their own."""

    momentum: float = Field(0.5, ge=0, lt=1, description="of SGD")

    def check(self, settings: Training) -> None:
        """Refuse a momentum that no step would have."""
        self.refuse_unused(settings, OPTIMIZERS)


class Rule(IntEnum):
    """Steps that the engines without autograd take, too, as those in C number them."""

    SGD = 0
    ADAM = 1
    ADAMW = 2


@dataclass(frozen=True)
class Optimizer:
    """A value of the setting ``optimizer``."""

    begin: Begin
    by_hand: Rule | None = None
    """As which of their steps the engines without autograd take these, if they do."""
    settings: tuple[type[PieceSettings], ...] = ()


def of_torch(factory: TorchFactory, by_hand: Rule | None = None) -> Optimizer:
    """Return the optimiser that takes the steps of a class of ``torch.optim``'s kind."""

    def begin(network: "nn.Module", settings: Training, frozen: frozenset[str]) -> "Steps":
        from client_app.training.steps import OfTorch

        return OfTorch(network, settings, frozen, factory)

    return Optimizer(begin, by_hand)


def _sgd(network: "nn.Module", settings: Training, frozen: frozenset[str]) -> "Steps":
    from client_app.training.steps import Sgd

    return Sgd(network, settings, frozen, settings.of(SgdSettings).momentum)


def _adam(parameters: Any, lr: float, weight_decay: float) -> Any:
    """Adam, its decay in the gradient: Kingma & Ba 2015, Algorithm 1."""
    from torch import optim

    return optim.Adam(parameters, lr=lr, weight_decay=weight_decay)


def _adamw(parameters: Any, lr: float, weight_decay: float) -> Any:
    """AdamW, its decay beside the gradient: Loshchilov & Hutter 2019, Algorithm 2."""
    from torch import optim

    return optim.AdamW(parameters, lr=lr, weight_decay=weight_decay)


OPTIMIZERS: Table[Optimizer] = Table(
    "optimizer",
    "coterie.optimizers",
    {
        "sgd": Optimizer(_sgd, by_hand=Rule.SGD, settings=(SgdSettings,)),
        "adam": of_torch(_adam, Rule.ADAM),
        "adamw": of_torch(_adamw, Rule.ADAMW),
    },
    of=Optimizer,
    made_of=of_torch,
)
"""What ``optimizer`` can name."""
