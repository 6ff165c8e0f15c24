"""Memories: what the server remembers of each model beside it, for objectives that ask for that."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from common.config import Settings
from common.messages import Parameters
from common.objectives import objective_of
from common.sharing import first_memory, sent_beside

log = logging.getLogger("coterie")

__all__ = ["Memories"]

Model = dict[str, np.ndarray]


class Memories:
    """A vector for each model, zeros at first; nothing for most objectives.

    Args:
        settings: of the run.
        buffers: names of arrays that are no parameters.
    """

    def __init__(self, settings: Settings, buffers: frozenset[str]) -> None:
        self._memory = objective_of(settings).memory
        self._buffers = buffers
        self._known: dict[int, Model] = {}
        self._era = 0

    def sent(self, models: Sequence[Model]) -> list[Model]:
        """Return the models with what goes beside them to the sites that train them."""
        if self._memory is None:
            return list(models)
        return [
            {**model, **sent_beside(self._memory, self._of(index, model), self._era)}
            for index, model in enumerate(models)
        ]

    def step(self, index: int, before: Parameters, average: Model, share: float) -> Model:
        """Return a model after the average of what its sites sent, and remember.

        Args:
            index: of the model.
            before: the model.
            average: with what came beside it.
            share: of the weights of all its sites, that of those who answered.
        """
        if self._memory is None:
            return average
        if self._memory.needs_all and share < 1 - 1e-9:
            log.warning("not all sites of model %d answered: their corrections begin anew", index)
            self._era += 1
        known = self._of(index, before)
        after, self._known[index] = self._memory.step(dict(before), average, known, share)
        return after

    def forget(self) -> None:
        """Begin anew, for the clusters did; the sites see it by the era."""
        self._known, self._era = {}, self._era + 1

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps; nothing where nothing is remembered."""
        if self._memory is None:
            return {}
        known = {str(index): memory for index, memory in self._known.items()}
        return {"remembered": known, "era": self._era}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        if self._memory is not None and state:
            self._known = {int(i): dict(memory) for i, memory in state["remembered"].items()}
            self._era = int(state["era"])

    def _of(self, index: int, model: Parameters) -> Model:
        return self._known.get(index) or first_memory(model, self._buffers)
