"""Representations: what a model makes of a site's own rows, the inputs of its last layer."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from client_app.site import Site
from client_app.training import engine, loop
from client_app.training.loop import TensorRows
from common import models, seeds
from common.messages import MOST_ROWS_SEEN, Parameters
from common.privacy.disclosures import RowSettings


@dataclass(frozen=True)
class SeenRows:
    """A model's representations of a site's training rows.

    Classes with fewer than ``min-rows`` rows are left out: nothing can be compared with them.
    """

    rows: np.ndarray
    """(m, d) float32: class after class, at most :data:`MOST_ROWS_SEEN` rows of each."""
    counts: Mapping[int, int]
    """Training rows of each class in ``rows``, in their order."""

    def rows_of(self, label: int) -> int:
        """Return how many rows of a class are here."""
        return min(self.counts[label], MOST_ROWS_SEEN)


def represented(parameters: Parameters, site: Site) -> SeenRows:
    """Return what the model makes of training rows, in evaluation mode (Elhussein, section III)."""
    labels = site.dataset.train_y[site.rows.train]
    counts = np.bincount(labels)
    min_rows = site.settings.of(RowSettings).min_rows
    known = [label for label in range(len(counts)) if counts[label] >= min_rows]
    chosen = [site.rows.train[_rows_of(label, labels, site)] for label in known]
    rows = np.concatenate([np.empty(0, dtype=np.int64), *chosen])
    settings, dataset = site.settings, site.dataset
    device = loop.choose_device(settings.device)
    network = engine.network_with(
        parameters, settings.model, dataset.input_shape, dataset.num_outputs, device
    )
    with loop.one_thread(device):
        seen = last_inputs(
            network, TensorRows.on(device, dataset.train_x[rows], dataset.train_y[rows])
        )
    return SeenRows(seen, {label: int(counts[label]) for label in known})


def _rows_of(label: int, labels: np.ndarray, site: Site) -> np.ndarray:
    """Return the places of a class's rows, or of as many as are sent, drawn from the seed."""
    places = np.flatnonzero(labels == label)
    if len(places) <= MOST_ROWS_SEEN:
        return places
    rng = seeds.generator(site.settings.seed, "representations", site.name, label)
    return np.sort(rng.choice(places, MOST_ROWS_SEEN, replace=False))


def last_inputs(network: nn.Module, rows: TensorRows) -> np.ndarray:
    """Return the inputs of a network's last linear layer, (n, d) float32, in evaluation mode.

    A volume's is the mean over its voxels.
    """
    layer = models.last_linear(network)
    seen = [layer.weight.new_empty((0, layer.weight.shape[1])).cpu()]
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(_one_each(inputs[0])))
    network.eval()
    try:
        with torch.inference_mode():
            for batch in torch.split(rows.inputs, loop.rows_at_once(rows)):
                if len(batch):
                    network(batch)
    finally:
        hook.remove()
    result: np.ndarray = torch.cat(seen).numpy()
    return result


def _one_each(inputs: Tensor) -> Tensor:
    """Return one row (n, d) for each input of a layer (n, d, ...)."""
    return (inputs if inputs.dim() == 2 else inputs.flatten(2).mean(2)).cpu()


def drawn_inputs(site: Site, most: int) -> np.ndarray:
    """Return the inputs of training rows (m, *input shape), at most so many, drawn by the seed."""
    inputs, _ = site.train
    rng = seeds.generator(site.settings.seed, "probe", site.name)
    chosen = rng.choice(len(inputs), min(most, len(inputs)), replace=False)
    drawn: np.ndarray = inputs[np.sort(chosen)]
    return drawn
