import copy

import numpy as np
import pytest
import torch
from torch import nn

from client_app.training.optimizers import OPTIMIZERS, SgdSettings
from client_app.training.steps import Anchored
from common.config import Settings
from common.errors import ConfigError
from common.objectives import Pull

RATES = {"learning_rate": 0.01, "weight_decay": 0.1}
OF_TORCH = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.1, momentum=0.5),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "torch.optim:RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, weight_decay=0.1),
}


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))


def rows():
    return torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(1))


def moved(made, step, count=3):
    for _ in range(count):
        (made(rows()) ** 2).sum().backward()
        with torch.no_grad():
            step()
    return [value.detach().clone() for value in made.parameters()]


@pytest.mark.parametrize("name", OF_TORCH)
def test_steps_are_those_of_torch(name):
    ours, theirs = network(), network()
    steps = OPTIMIZERS.named(name).begin(ours, Settings(optimizer=name, **RATES), frozenset())
    optimizer = OF_TORCH[name](theirs.parameters())

    def step():
        optimizer.step()
        optimizer.zero_grad()

    for one, other in zip(moved(ours, steps.step), moved(theirs, step), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", OF_TORCH)
def test_a_pull_is_part_of_the_gradient_and_what_is_frozen_keeps_its_bits(name):
    settings = Settings(optimizer=name, **RATES)
    made = network()
    first = copy.deepcopy(made)
    anchor = {key: np.ones(value.shape, np.float32) for key, value in made.named_parameters()}
    steps = OPTIMIZERS.named(name).begin(made, settings, frozenset({"0.weight"}))
    towards = Anchored(made, Pull(anchor, 1e6))
    moved(made, lambda: steps.step(towards), count=1)
    assert torch.equal(made[0].weight, first[0].weight)
    before, after = first[2].weight, made[2].weight
    assert bool((after > before).all()), "1e6 (w - 1) outweighs the loss"


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        (lambda parameters, lr, weight_decay: 3, "makes a int; it must be a torch.optim.Optim"),
        (lambda parameters: 3, "TypeError: "),
    ],
)
def test_an_optimiser_that_is_none_is_named(factory, says):
    name = OPTIMIZERS.take(factory)
    with pytest.raises(ConfigError, match=rf"^optimizer = '{name}': .*{says}"):
        OPTIMIZERS.named(name).begin(network(), Settings(optimizer=name), frozenset())


def test_a_momentum_that_no_step_would_have_is_refused():
    with pytest.raises(ConfigError, match=r"momentum = 0.9: optimizer = adam does not use it"):
        Settings.parse({"optimizer": "adam", "momentum": 0.9})
    assert Settings.parse({"momentum": 0.9}).of(SgdSettings).momentum == 0.9
