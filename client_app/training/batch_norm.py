"""Batch norm: how many rows a step needs where a network normalises over a batch.

One value has no variance, and torch refuses to normalise by it. A last batch of one row is
therefore joined to the batch before it, which loses no row and no site; a site or a run whose
batches are all of one row is refused before the first round.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from client_app.site import Site
from client_app.training.orders import batch_sizes
from common import models
from common.errors import ConfigError

__all__ = ["refuse_lone_rows", "rows_needed"]


def rows_needed(network: nn.Module, inputs: Tensor, sizes: Sequence[int]) -> int:
    """Return how many rows a step of a network needs: 2 where batch norm sees one value a channel.

    Without a batch of one it is 1, as it is where a row alone brings several values, as an image
    does: there numbers stay what they were.

    Args:
        network: of which a copy is tried.
        inputs: (n, *input shape) to train on, one row or more.
        sizes: of the batches of a pass.
    """
    if 1 not in sizes or not any(isinstance(layer, _BatchNorm) for layer in network.modules()):
        return 1
    devices = [inputs.device] if inputs.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        try:
            copy.deepcopy(network).train()(inputs[:1])
        except ValueError:
            return 2
    return 1


def refuse_lone_rows(site: Site) -> None:
    """Raise :class:`ConfigError` where every batch of a site would be of one row, and none can."""
    settings, dataset = site.settings, site.dataset
    sizes = batch_sizes(len(site.rows.train), settings)
    if max(sizes, default=0) != 1:
        return
    network = models.blank(settings.model, dataset.input_shape, dataset.num_outputs)
    if rows_needed(network, torch.from_numpy(site.train[0][:1]), sizes) == 1:
        return
    what = "it has one training row" if len(sizes) == 1 else "batch-size = 1"
    raise ConfigError(
        f"model = {settings.model!r}: its batch norm needs two rows in a batch, and {what}; "
        "give the site more rows or leave it out, set batch-size=2 or more, or take a network "
        "without batch norm"
    )
