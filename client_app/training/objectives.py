"""Objectives: what a site minimises on its own rows, and which of its models it sends.

Every objective is the one SGD loop of :mod:`client_app.training.loop`; they differ in where it
starts, what pulls it (:class:`client_app.training.pull.Pull`), and what becomes of the result.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from client_app.training import engine
from client_app.training.engine import Fitted, Lesson
from client_app.training.pull import Pull
from common.config import Settings
from common.messages import Parameters

Model = dict[str, np.ndarray]
Lessons = Callable[[], Lesson]
"""Gives the site's training for this message; the same rows and draws at every call."""


@dataclass(frozen=True)
class Learned:
    """What one training on a site gave."""

    shared: Model
    """What is sent to the server; without arrays if nothing is."""
    personal: Model | None
    """What the site keeps for itself; None if it keeps nothing."""
    loss: float
    """Of the model that is sent, or of the personal one if none is: as ``training.train``'s."""
    seconds: float


LocalObjective = Callable[[Parameters, Parameters | None, Lessons, Settings], Learned]
"""(model received, personal model so far or None, lessons, settings) -> what was learned."""


def fedavg(
    received: Parameters, personal: Parameters | None, lessons: Lessons, settings: Settings
) -> Learned:
    """SGD on the site's loss alone: McMahan et al. 2017, Algorithm 1."""
    return _sent(engine.fit(received, lessons(), settings))


def fedprox(
    received: Parameters, personal: Parameters | None, lessons: Lessons, settings: Settings
) -> Learned:
    """SGD on loss + mu/2 ||w - w_t||^2, w_t the model received: Li et al. 2020, eq. 2."""
    pull = Pull(received, settings.proximal_mu)
    return _sent(engine.fit(received, lessons(), settings, pull))


def ditto(
    received: Parameters, personal: Parameters | None, lessons: Lessons, settings: Settings
) -> Learned:
    """FedAvg's step, and v by SGD on loss + lambda/2 ||v - w_t||^2: Li et al. 2021, Algorithm 1.

    The step that is sent equals FedAvg's exactly. v starts from the model received when the site
    first trains and sees the rows in the same order; with lambda near 0 it is local training.
    """
    sent = engine.fit(received, lessons(), settings)
    pull = Pull(received, settings.personal_lambda)
    own = engine.fit(personal or received, lessons(), settings, pull)
    return Learned(sent.parameters, own.parameters, sent.loss, sent.seconds + own.seconds)


def pfedme(
    received: Parameters, personal: Parameters | None, lessons: Lessons, settings: Settings
) -> Learned:
    """Moreau envelopes: Dinh et al. 2020, Algorithm 1.

    On every batch, K = ``pfedme-steps`` steps of SGD on loss + lambda/2 ||theta - w||^2, then
    w <- w - eta lambda (w - theta); eta is the learning rate of both. theta goes on from where it
    was; w starts from the model received and is what is sent. Buffers of batch norm are theta's.
    """
    rate = settings.learning_rate * settings.personal_lambda
    pull = Pull(received, settings.personal_lambda, steps=settings.pfedme_steps, follow=rate)
    fitted = engine.fit(personal or received, lessons(), settings, pull)
    assert fitted.anchor is not None
    return Learned(fitted.anchor, fitted.parameters, fitted.loss, fitted.seconds)


def local(
    received: Parameters, personal: Parameters | None, lessons: Lessons, settings: Settings
) -> Learned:
    """SGD on the site's loss from its own last model; nothing is sent."""
    fitted = engine.fit(personal or received, lessons(), settings)
    return Learned({}, fitted.parameters, fitted.loss, fitted.seconds)


def _sent(fitted: Fitted) -> Learned:
    return Learned(fitted.parameters, None, fitted.loss, fitted.seconds)


OBJECTIVES: dict[str, LocalObjective] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "ditto": ditto,
    "pfedme": pfedme,
    "local": local,
}
