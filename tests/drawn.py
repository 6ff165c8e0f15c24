"""Networks and numbers that a seed decides, whatever another test has drawn before."""

import contextlib
from collections.abc import Iterator

import torch
from kinds_of_rows import rows_of
from torch import Tensor, nn

from common import models


@contextlib.contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Let torch's own generator, from which layers draw their first values, start from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def network(name: str, shape: tuple[int, ...], classes: int, seed: int = 0) -> nn.Module:
    """Return ``models.build``'s network with the first values of a seed."""
    with seeded(seed):
        return models.build(name, rows_of(*shape), classes)


def first_model(name: str, shape: tuple[int, ...], classes: int, seed: int = 0):
    """Return the arrays of that network."""
    return models.parameters_of(network(name, shape, classes, seed))


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return numbers of a normal distribution, float32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
