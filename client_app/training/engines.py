"""Engines: what ``engine`` can name, and which code of :mod:`.engine` each one is.

torch is imported by what trains, not by this file: settings are checked against the names before
anything slow is loaded.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from common.config import Training
from common.plugins import PieceSettings, Table

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["ENGINES", "ByHand", "Engine", "Obstacle", "Passes", "RowsOfSite", "Train"]

Passes = Iterable[Sequence["Tensor"]]
"""Passes over a client's rows, each a list of batches: the places (b,) int64 of their rows. They
are drawn as they are asked for, so ask for all of them, in their order."""


class RowsOfSite(Protocol):
    """A site's training rows, on the network's device."""

    @property
    def inputs(self) -> "Tensor":
        """(n, *shape of a row)."""

    @property
    def labels(self) -> "Tensor":
        """(n, ...) their targets, as the task has them."""

    def __len__(self) -> int:
        """How many there are."""


Train = Callable[["nn.Module", RowsOfSite, Passes, Training, frozenset[str]], float]
"""(network, in training mode, changed in place; rows; passes; settings with the
round's learning rate; names of parameters that stand still) -> mean loss of the last pass' rows,
each before the step on its batch."""

Obstacle = Callable[[Training, "nn.Module"], str]
"""(settings of the run, network) -> what of it an engine does not take, in a word or two; empty: it
takes it."""


class ByHand(IntEnum):
    """Which networks are trained by steps without autograd."""

    NONE = 0
    DENSE = 1
    ANY = 2
    """Of whose operations there are such steps."""


def _takes_all(settings: Training, network: "nn.Module") -> str:
    return ""


@dataclass(frozen=True)
class Engine:
    """A value of the setting ``engine``.

    What one does not take, the loop trains; ``environment.json`` says which code trains, and why.
    """

    train: Train | None = None
    """Of one from elsewhere: trains a client's network. An objective's pull or second model, and
    rows with weights, are left to the loop. Torch's generator is seeded for the client's dropout.
    """
    obstacle: Obstacle = _takes_all
    """Of one from elsewhere."""
    by_hand: ByHand = ByHand.NONE
    must_compile: bool = False
    """Whether a machine without a C compiler is refused."""
    stacks: bool = False
    """Whether sites of a simulation are trained side by side where they can be."""
    settings: tuple[type[PieceSettings], ...] = ()


ENGINES: Table[Engine] = Table(
    "engine",
    "coterie.engines",
    {
        "auto": Engine(by_hand=ByHand.ANY),  # of a site that decides itself, training by training
        "loop": Engine(),
        "batched": Engine(by_hand=ByHand.DENSE),
        "compiled": Engine(by_hand=ByHand.ANY, must_compile=True),
        "stacked": Engine(by_hand=ByHand.ANY, stacks=True),
    },
    of=Engine,
    made_of=Engine,
)
"""What ``engine`` can name."""
