"""Probe rows, and what a model makes of them."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field
from torch import nn

from common import models, seeds
from common.config import Settings, unknown_name
from common.errors import ConfigError, DataError
from common.messages import Parameters
from common.plugins import PieceSettings
from common.tasks.inputs import TOKENS, Inputs

__all__ = ["PROBABILITIES", "ProbeRows", "ProbeSettings", "Prober", "noise", "read_rows"]

Source = Literal["public", "noise", "client-rows"]

PROBABILITIES = "probabilities"
"""The layer that is not one of the network's own: the softmax of its logits."""


class ProbeSettings(PieceSettings):
    """On which rows models are compared, and by which of their layers."""

    paths: ClassVar[frozenset[str]] = frozenset({"probe_file"})
    cka_layer: str = Field(
        "probabilities",
        min_length=1,
        description="fedsccs: layer compared; probabilities, or a child of the network",
    )
    cka_probe: Literal["auto", "public", "noise", "client-rows"] = Field(
        "auto",
        description="rows on which models are compared; auto: probe-file if given, else noise; "
        "client-rows discloses rows of every site",
    )
    cka_probe_size: int = Field(
        100, ge=2, le=100_000, description="probe rows; client-rows: of each site"
    )
    probe_file: str = Field("", description="cka-probe=public: .npz with X, standardised rows")

    def check(self, settings: Settings) -> None:
        """Refuse a probe of two sources, or of none."""
        if self.cka_probe == "public" and not self.probe_file:
            raise ValueError("cka-probe = public: name the file of rows with probe-file")
        if self.probe_file and self.cka_probe in ("noise", "client-rows"):
            raise ValueError(f"probe-file and cka-probe = {self.cka_probe}: leave one of them out")

    def discloses(self, settings: Settings) -> frozenset[str]:
        """Return rows of the sites where the probe is made of them."""
        return frozenset({"probe-rows"} if self.cka_probe == "client-rows" else ())


@dataclass(frozen=True)
class ProbeRows:
    """Rows on which models are compared, as the networks take them: float32, standardised."""

    rows: np.ndarray
    """(m, *input shape), m >= 2."""
    source: Source

    def __post_init__(self) -> None:
        """Refuse what cannot show how models differ."""
        if len(self.rows) < 2 or not np.isfinite(self.rows).all():
            raise DataError(
                f"probe rows of shape {self.rows.shape}: models are compared on at least two "
                "finite rows"
            )


def noise(settings: Settings, inputs: Inputs) -> ProbeRows:
    """Return ``cka-probe-size`` rows of standard normal noise, the scale of standardised data."""
    _refuse_tokens(inputs)
    rng = seeds.generator(settings.seed, "probe")
    size = (settings.of(ProbeSettings).cka_probe_size, *inputs.shape)
    return ProbeRows(rng.standard_normal(size).astype(np.float32), "noise")


def read_rows(settings: Settings, inputs: Inputs) -> ProbeRows:
    """Return ``cka-probe-size`` rows of ``X`` in ``probe-file``, drawn from the seed; or all."""
    _refuse_tokens(inputs)
    asked = settings.of(ProbeSettings)
    path = Path(asked.probe_file)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            rows = archive["X"].astype(np.float32)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"probe-file={path} is no .npz with an array X: {error}") from None
    if rows.shape[1:] != inputs.shape:
        raise DataError(
            f"probe-file={path}: rows have shape {rows.shape[1:]}, the sites' {inputs.shape}"
        )
    size = min(asked.cka_probe_size, len(rows))
    chosen = seeds.generator(settings.seed, "probe").choice(len(rows), size, replace=False)
    return ProbeRows(rows[np.sort(chosen)], "public")


def _refuse_tokens(inputs: Inputs) -> None:
    if inputs.kind == TOKENS:
        raise ConfigError(
            "the run compares models on probe rows, which are numbers, and rows are token ids; use "
            "a strategy that compares weights, updates or labels"
        )


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
