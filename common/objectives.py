"""Local objectives: what a site minimises, which models it keeps and sends, and the server's step.

Every objective is the one SGD loop of the sites, handed in as a :class:`Fit`. They differ in where
it starts, what pulls it (:class:`Pull`), and what becomes of the result. All that is known of one
stands in its :class:`Objective`; nobody else asks for its name. A new one is a function, its
settings if it has any, and a row of :data:`OBJECTIVES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from pydantic import Field

from common.plugins import PieceSettings, Table

if TYPE_CHECKING:
    from common.config import Settings

Model = dict[str, np.ndarray]
Parameters = Mapping[str, np.ndarray]  # as common.messages has it, which loads Flower


@dataclass(frozen=True)
class Pull:
    """The term strength/2 ||w - anchor||^2 beside the loss; batch norm's buffers are not pulled.

    The squared norm, whose gradient is strength (w - anchor).
    """

    anchor: Parameters
    strength: float
    """>= 0."""
    steps: int = 1
    """SGD steps on every batch."""
    follow: float = 0.0
    """Share of its way to w that the anchor moves after every batch, in [0, 1]."""

    def __post_init__(self) -> None:
        assert self.strength >= 0
        assert self.steps >= 1
        assert 0 <= self.follow <= 1

    @property
    def acts(self) -> bool:
        """Whether training differs from that without a pull."""
        return self.strength > 0 or self.steps > 1


@dataclass(frozen=True)
class Fitted:
    """What ``local-epochs`` of SGD gave."""

    parameters: Model
    loss: float
    """Mean over the last local epoch, in nats."""
    seconds: float = 0.0
    anchor: Model | None = None
    """Where the pull's anchor moved to; None where nothing pulled."""


class Fit(Protocol):
    """SGD on a site's rows; the same rows and draws at every call."""

    def __call__(self, start: Parameters, pull: Pull | None = None) -> Fitted:
        """Return what ``local-epochs`` from the parameters given make of them."""


@dataclass(frozen=True)
class Learned:
    """What one training on a site gave."""

    shared: Model
    """What is sent to the server; without arrays if nothing is."""
    personal: Model | None
    """What the site keeps for itself; None if it keeps nothing."""
    loss: float
    """Of the model that is sent, or of the personal one if none is: as :class:`Fitted`'s."""
    seconds: float


Learn = Callable[[Parameters, Parameters | None, Fit, "Settings"], Learned]
"""(model received, personal model so far or None, SGD, settings) -> what was learned."""

ServerStep = Callable[[Model, Model, "Settings"], Model]
"""(model before the round, average of the cohort's, settings) -> model after it."""


def to_the_average(before: Model, average: Model, settings: "Settings") -> Model:
    """Return the average: McMahan et al. 2017, Algorithm 1."""
    return average


@dataclass(frozen=True)
class Objective:
    """A local objective: how a site trains, and what that means for everybody else.

    One that keeps a personal model returns it from every training, and one that shares a model
    sends it; a test holds that for all of the table.
    """

    learn: Learn
    words: str
    """What a federation gets by it, as a report says it."""
    is_personal: bool = False
    """Whether sites keep models of their own, which are then what a site uses."""
    shares_model: bool = True
    """Whether there is a model that sites train together."""
    is_plain: bool = False
    """Whether it is SGD on the loss, from the model received, and that is what is sent.

    Sites can then be trained side by side.
    """
    step: ServerStep = to_the_average
    """What the server makes of a model and the average of its cohort's."""
    settings: tuple[type[PieceSettings], ...] = ()
    strength: str = ""
    """The key of the setting that says how strongly it pulls; empty where nothing pulls."""


class ObjectiveSettings(PieceSettings):
    """Settings of local objectives, refused where the run's objective does not use them."""

    def check(self, settings: "Settings") -> None:
        """Refuse values that nobody reads, and those that do not go with others."""
        if self.refuse_unused(settings, OBJECTIVES):
            self.check_in_use(settings)

    def check_in_use(self, settings: "Settings") -> None:
        """Raise ValueError where the run's objective cannot work with these values."""


class FedProxSettings(ObjectiveSettings):
    """The pull towards the model received."""

    proximal_mu: float = Field(0.01, ge=0, description="fedprox: strength of mu/2 ||w - w_t||^2")


class PersonalSettings(ObjectiveSettings):
    """The pull between a personal model and the common one."""

    personal_lambda: float = Field(
        1.0, gt=0, description="ditto, pfedme: strength of lambda/2 ||personal - common||^2"
    )


class PFedMeSettings(ObjectiveSettings):
    """The steps of pFedMe, on the site and on the server."""

    pfedme_steps: int = Field(5, ge=1, description="pfedme: SGD steps on each batch (K)")
    pfedme_beta: float = Field(
        1.0, gt=0, le=10, description="pfedme: share of the way to the average the server goes"
    )

    def check_in_use(self, settings: "Settings") -> None:
        """Refuse two steps of the server, and a model that would move beyond the personal one."""
        if settings.server_optimizer != "none" and self.pfedme_beta != 1:
            raise ValueError(
                f"pfedme-beta = {self.pfedme_beta} and server-optimizer = "
                f"{settings.server_optimizer} both say how far the server goes; leave one out"
            )
        strength = settings.of(PersonalSettings).personal_lambda
        if settings.learning_rate * strength > 1:
            raise ValueError(
                f"personal-lambda = {strength}: times learning-rate = {settings.learning_rate} it "
                "must be at most 1, or pfedme's model overshoots the personal one; lower either"
            )


def fedavg(
    received: Parameters, personal: Parameters | None, fit: Fit, settings: "Settings"
) -> Learned:
    """SGD on the site's loss alone: McMahan et al. 2017, Algorithm 1."""
    return _sent(fit(received))


def fedprox(
    received: Parameters, personal: Parameters | None, fit: Fit, settings: "Settings"
) -> Learned:
    """SGD on loss + mu/2 ||w - w_t||^2, w_t the model received: Li et al. 2020, eq. 2."""
    return _sent(fit(received, Pull(received, settings.of(FedProxSettings).proximal_mu)))


def ditto(
    received: Parameters, personal: Parameters | None, fit: Fit, settings: "Settings"
) -> Learned:
    """FedAvg's step, and v by SGD on loss + lambda/2 ||v - w_t||^2: Li et al. 2021, Algorithm 1.

    The step that is sent equals FedAvg's exactly. v starts from the model received when the site
    first trains and sees the rows in the same order; with lambda near 0 it is local training.
    """
    sent = fit(received)
    own = fit(personal or received, Pull(received, settings.of(PersonalSettings).personal_lambda))
    return Learned(sent.parameters, own.parameters, sent.loss, sent.seconds + own.seconds)


def pfedme(
    received: Parameters, personal: Parameters | None, fit: Fit, settings: "Settings"
) -> Learned:
    """Moreau envelopes: Dinh et al. 2020, Algorithm 1.

    On every batch, K = ``pfedme-steps`` steps of SGD on loss + lambda/2 ||theta - w||^2, then
    w <- w - eta lambda (w - theta); eta is the learning rate of both. theta goes on from where it
    was; w starts from the model received and is what is sent. Buffers of batch norm are theta's.
    """
    strength = settings.of(PersonalSettings).personal_lambda
    steps = settings.of(PFedMeSettings).pfedme_steps
    pull = Pull(received, strength, steps=steps, follow=settings.learning_rate * strength)
    fitted = fit(personal or received, pull)
    assert fitted.anchor is not None
    return Learned(fitted.anchor, fitted.parameters, fitted.loss, fitted.seconds)


def part_of_the_way(before: Model, average: Model, settings: "Settings") -> Model:
    """Return (1 - beta) before + beta average, beta = ``pfedme-beta``; above 1 it goes beyond.

    The server's step of pFedMe: Dinh et al. 2020, Algorithm 1. At beta = 1 it is the average.
    Adds in float64; integer buffers (batch counters) are rounded and keep their type.
    """
    beta = settings.of(PFedMeSettings).pfedme_beta
    return {name: _between(before[name], value, beta) for name, value in average.items()}


def _between(before: np.ndarray, after: np.ndarray, beta: float) -> np.ndarray:
    value = 0.0 + (1 - beta) * before.astype(np.float64) + beta * after.astype(np.float64)
    # rint makes a number of an array without axes
    return np.asarray(np.rint(value) if after.dtype.kind in "iu" else value, after.dtype)


def local(
    received: Parameters, personal: Parameters | None, fit: Fit, settings: "Settings"
) -> Learned:
    """SGD on the site's loss from its own last model; nothing is sent."""
    fitted = fit(personal or received)
    return Learned({}, fitted.parameters, fitted.loss, fitted.seconds)


def _sent(fitted: Fitted) -> Learned:
    return Learned(fitted.parameters, None, fitted.loss, fitted.seconds)


OBJECTIVES: Table[Objective] = Table(
    "objective",
    "coterie.objectives",
    {
        "fedavg": Objective(fedavg, "one common model (FedAvg)", is_plain=True),
        "fedprox": Objective(
            fedprox,
            "one common model, each site held near it while it trains (FedProx)",
            settings=(FedProxSettings,),
            strength="proximal-mu",
        ),
        "ditto": Objective(
            ditto,
            "a model for each site, held near a common one (Ditto)",
            is_personal=True,
            settings=(PersonalSettings,),
            strength="personal-lambda",
        ),
        "pfedme": Objective(
            pfedme,
            "a model for each site, drawn to a common one (pFedMe)",
            is_personal=True,
            step=part_of_the_way,
            settings=(PersonalSettings, PFedMeSettings),
            strength="personal-lambda",
        ),
        "local": Objective(local, "trains alone", is_personal=True, shares_model=False),
    },
    of=Objective,
)


def objective_of(settings: "Settings") -> Objective:
    """Return a run's local objective."""
    return OBJECTIVES.named(settings.objective)
