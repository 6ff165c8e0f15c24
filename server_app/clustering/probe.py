"""Prober: what a model makes of probe rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import numpy as np
import torch
from torch import nn

from common import models
from common.config import Settings, unknown_name
from common.errors import ConfigError
from common.messages import Parameters
from common.tasks.inputs import Inputs
from server_app.clustering.probe_rows import PROBABILITIES, ProbeRows

__all__ = ["Prober"]


class Prober:
    """Runs models of one architecture on probe rows.

    Args:
        network: of the run's architecture; its parameters are overwritten.
        layer: ``probabilities``, or the name of a child of the network.
        probe: the rows.
        first: the run's first model, for arrays that nobody trains and that are not sent.
    """

    def __init__(
        self, network: nn.Module, layer: str, probe: ProbeRows, first: Parameters | None = None
    ) -> None:
        names = [PROBABILITIES, *(name for name, _ in network.named_children())]
        if layer not in names:
            raise ConfigError(unknown_name("cka-layer", layer, names))
        self.probe = probe
        self._network = network.eval()
        self._layer = layer
        self._first = first or {}
        self._rows = torch.from_numpy(probe.rows)

    @classmethod
    def of_model(
        cls,
        settings: Settings,
        inputs: Inputs,
        classes: int,
        layer: str,
        probe: ProbeRows,
    ) -> Self:
        """Return the prober of a run's architecture, by the setting ``model``."""
        network = models.blank(settings.model, inputs, classes)
        first = models.initial_parameters(settings, inputs, classes)
        return cls(network, layer, probe, first)

    def activations(self, parameters: Parameters) -> np.ndarray:
        """Return the layer's output on every probe row, (m, width) float32."""
        models.load_parameters(self._network, {**self._first, **parameters})
        with _one_thread(), torch.inference_mode():
            return self._output().flatten(1).numpy().copy()

    def predictions(self, parameters: Parameters) -> np.ndarray:
        """Return the class predicted for every probe row, (m,) int64."""
        models.load_parameters(self._network, {**self._first, **parameters})
        with _one_thread(), torch.inference_mode():
            classes: np.ndarray = self._network(self._rows).argmax(1).numpy()
            return classes

    def _output(self) -> torch.Tensor:
        if self._layer == PROBABILITIES:
            probabilities: torch.Tensor = torch.softmax(self._network(self._rows), dim=1)
            return probabilities
        seen: list[torch.Tensor] = []
        child = self._network.get_submodule(self._layer)
        hook = child.register_forward_hook(lambda _, __, output: seen.append(output))
        try:
            self._network(self._rows)
        finally:
            hook.remove()
        return seen[0]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Add in one order, so that the clusters do not depend on the machine's number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
