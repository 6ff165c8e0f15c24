import pytest
import torch
from torch.nn import functional

from client_app.training import losses
from client_app.training.losses import LOSSES
from common.config import Settings
from common.errors import ConfigError

LABELS = torch.tensor([0, 2, 1])


def outputs():
    values = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    return values.requires_grad_()


def test_the_usual_loss_is_the_cross_entropy():
    assert losses.of(Settings())(outputs(), LABELS) == functional.cross_entropy(outputs(), LABELS)


def test_one_of_elsewhere_is_taken_by_its_place():
    found = losses.of(Settings(loss="torch.nn.functional:cross_entropy"))(outputs(), LABELS)
    assert found == functional.cross_entropy(outputs(), LABELS)


@pytest.mark.parametrize(
    ("mean", "says"),
    [
        (lambda made, labels: made.sum(1), r"gives a tensor of shape \(3,\)"),
        (lambda made, labels: 0.5, "gives float"),
        (lambda made, labels: torch.tensor(0.5), r"gives a tensor of shape \(\)"),
        (lambda made, labels: made.sum() * float("nan"), "is nan in training"),
    ],
)
def test_a_loss_that_is_none_is_named(mean, says):
    name = LOSSES.take(mean)
    with pytest.raises(ConfigError, match=rf"^loss = '{name}': {says}"):
        losses.of(Settings(loss=name))(outputs(), LABELS)
