import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_sample_weight
from torch.nn import functional
from torchvision.ops import sigmoid_focal_loss

from client_app.training import losses
from client_app.training.losses import LOSSES
from common.config import Settings, load
from common.errors import ConfigError

LABELS = torch.tensor([0, 2, 1])


def outputs():
    values = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    return values.requires_grad_()


def test_the_usual_loss_is_the_cross_entropy():
    assert losses.of(Settings(), LABELS)(outputs(), LABELS) == functional.cross_entropy(
        outputs(), LABELS
    )


def test_one_of_elsewhere_is_taken_by_its_place():
    found = losses.of(Settings(loss="torch.nn.functional:cross_entropy"), LABELS)(outputs(), LABELS)
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
        losses.of(Settings(loss=name), LABELS)(outputs(), LABELS)


@pytest.mark.parametrize("gamma", [0, 0.5, 2])
def test_the_focal_loss_of_two_classes_is_torchvisions(gamma):
    made = 4 * torch.randn(40, 2, generator=torch.Generator().manual_seed(1))
    labels = (torch.arange(40) % 3 == 0).long()
    found = losses.of(Settings(loss="focal", focal_gamma=gamma), labels)(made, labels)
    difference = made[:, 1] - made[:, 0]  # of whose sigmoid the second probability is
    expected = sigmoid_focal_loss(difference, labels.float(), -1, gamma, "mean")
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_with_class_weights_every_class_of_a_site_counts_alike():
    labels = torch.tensor([0] * 36 + [2] * 4)  # nobody is of class 1
    made = torch.randn(40, 3, generator=torch.Generator().manual_seed(2))
    mean = losses.of(Settings(class_weights="site"), labels)
    weights = compute_sample_weight("balanced", labels.numpy())
    probabilities = made.double().softmax(1).numpy()
    expected = log_loss(labels, probabilities, labels=[0, 1, 2], sample_weight=weights)
    assert mean(made, labels).item() == pytest.approx(expected, rel=1e-5)
    # batches know the site's weights and not their own
    halves = [mean(made[part], labels[part]).item() for part in (slice(20), slice(20, 40))]
    assert np.mean(halves) == pytest.approx(expected, rel=1e-5)
    focal = losses.of(Settings(loss="focal", focal_gamma=0, class_weights="site"), labels)
    assert focal(made, labels).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("task=regression class-weights=site", "class-weights = site: is for classes"),
        ("task=regression loss=focal", "loss = focal: is for classes"),
        ("dataset=ixi-tiny loss=focal", "loss = focal: is for classes"),
        ("focal-gamma=1", "focal-gamma = 1.0: loss = auto does not use it"),
        (
            "loss=torch.nn.functional:cross_entropy class-weights=site",
            "class-weights = site: loss = torch.nn.functional:cross_entropy does not use it",
        ),
    ],
)
def test_what_has_no_classes_has_no_weights_of_them(words, says):
    with pytest.raises(ConfigError, match=says):
        load(None, words.split())
