"""Personal models: kept by the site, never sent, there again after a restart."""

import functools
import hashlib
import json
from dataclasses import dataclass

import numpy as np
import safetensors.numpy

from client_app.site import Site
from client_app.site_state import Keeper
from client_app.training import engine
from client_app.training.engine import Lesson
from client_app.training.loop import Evaluation
from client_app.training.objectives import OBJECTIVES, Learned
from common import models
from common.config import MAY_CHANGE, Settings
from common.messages import Order, Parameters

_NOT_THE_RUNS = MAY_CHANGE | {"device"}
"""Settings that may change while a run goes on, and one that a site decides itself."""


@dataclass(frozen=True)
class PersonalModels:
    """The models of the last round that a site trained in, and of the round before that one.

    Two, because a round can be asked for twice: retried, or again after a crash. It then starts
    from the same model and gives the same one.
    """

    keeper: Keeper
    name: str
    """Of the piece kept; another run's models lie under another name."""

    @classmethod
    def of(cls, site: Site) -> "PersonalModels":
        """Return a site's in a run; runs of equal settings count as one run, which was resumed."""
        values = site.settings.to_dict()
        own = {key: value for key, value in values.items() if key not in _NOT_THE_RUNS}
        digest = hashlib.blake2b(json.dumps(own, sort_keys=True).encode(), digest_size=8)
        return cls(site.keeper, f"personal-{digest.hexdigest()}.safetensors")

    def up_to(self, server_round: int, like: Parameters) -> dict[str, np.ndarray] | None:
        """Return the newest model of a round up to this one; None if there is none.

        Args:
            server_round: from 1; 0 is before everything.
            like: a model of the run, for the order of the arrays, which the file does not keep.
        """
        known = self._read()
        rounds = [trained for trained in known if trained <= server_round]
        if not rounds:
            return None
        model = known[max(rounds)]
        return {name: model[name] for name in like}

    def write(self, server_round: int, parameters: Parameters) -> None:
        """Keep a round's model, and of the others the one it started from."""
        known = self._read()
        before = [trained for trained in known if trained < server_round]
        kept: dict[int, Parameters] = {max(before): known[max(before)]} if before else {}
        kept[server_round] = parameters
        arrays = {
            f"{trained}/{name}": np.asarray(value, order="C")
            for trained, model in kept.items()
            for name, value in model.items()
        }
        self.keeper.write(self.name, safetensors.numpy.save(arrays))

    def _read(self) -> dict[int, dict[str, np.ndarray]]:
        data = self.keeper.read(self.name)
        known: dict[int, dict[str, np.ndarray]] = {}
        for key, value in safetensors.numpy.load(data).items() if data else ():
            trained, _, name = key.partition("/")
            known.setdefault(int(trained), {})[name] = value
        return known


def train(received: Parameters, site: Site, order: Order) -> Learned:
    """Return what the run's local objective learns from a model; a personal one is kept."""
    settings = site.settings
    objective = OBJECTIVES[settings.objective]

    def lesson() -> Lesson:
        return Lesson.of(site, order)

    if not settings.is_personal:
        return objective(received, None, lesson, settings)
    kept, first = PersonalModels.of(site), _first(received, site)
    with site.keeper.locked():
        learned = objective(first, kept.up_to(order.round - 1, first), lesson, settings)
        assert learned.personal is not None
        kept.write(order.round, learned.personal)
    return learned


def evaluate(
    received: Parameters, site: Site, order: Order
) -> tuple[Evaluation, Evaluation | None]:
    """Return how the site's own model does on its held-out rows, and the common one if there is.

    A site that has not trained yet has no other model than the one received.
    """
    first = _first(received, site)
    own = PersonalModels.of(site).up_to(order.round, first)
    [result] = engine.evaluate(own or first, [site])
    if not site.settings.shares_model:
        return result, None
    [shared] = engine.evaluate(first, [site])
    return result, shared


def _first(received: Parameters, site: Site) -> Parameters:
    """Return the model received; where none is sent, the run's first, which its seed decides."""
    if received:
        return received
    return _initial(site.settings, site.dataset.input_shape, site.dataset.num_classes)


@functools.lru_cache(maxsize=1)
def _initial(
    settings: Settings, input_shape: tuple[int, ...], num_classes: int
) -> dict[str, np.ndarray]:
    return models.initial_parameters(settings, input_shape, num_classes)
