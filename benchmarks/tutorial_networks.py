"""Networks as tutorials have them, each written from its description: what users bring along.

By name: ``model=benchmarks.tutorial_networks:Flower``.
"""

# ruff: noqa: D102 - every forward does what its class says

import torch
from torch import nn
from torch.nn import functional


class Flower(nn.Module):
    """Two 5x5 convolutions, ReLU before pooling, ``view``, three dense layers."""

    def __init__(self, shape, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.side = (shape[1] - 12) // 4
        self.fc1 = nn.Linear(16 * self.side**2, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, x):
        x = self.pool(functional.relu(self.conv1(x)))
        x = self.pool(functional.relu(self.conv2(x)))
        x = x.view(-1, 16 * self.side**2)
        x = functional.relu(self.fc1(x))
        return self.fc3(functional.relu(self.fc2(x)))


class Leaf(nn.Module):
    """Two padded convolutions of 8 and 16 channels, ``reshape``, one hidden layer."""

    def __init__(self, shape, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 8, 5, padding=2)
        self.conv2 = nn.Conv2d(8, 16, 5, padding="same")
        self.hidden = nn.Linear(16 * (shape[1] // 4) * (shape[2] // 4), 32)
        self.output = nn.Linear(32, classes)

    def forward(self, x):
        for layer in (self.conv1, self.conv2):
            x = functional.max_pool2d(torch.relu(layer(x)), 2)
        x = x.reshape(x.shape[0], -1)
        return self.output(self.hidden(x).relu())


def pfllib(shape, classes):
    """A Sequential of Sequentials: convolution, ReLU, pooling, twice."""
    side = ((shape[1] - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], 8, 5), nn.ReLU(inplace=True), nn.MaxPool2d((2, 2))),
        nn.Sequential(nn.Conv2d(8, 16, 5), nn.ReLU(inplace=True), nn.MaxPool2d((2, 2))),
        nn.Flatten(),
        nn.Sequential(nn.Linear(16 * side**2, 32), nn.ReLU(inplace=True)),
        nn.Linear(32, classes),
    )


def fl4health(shape, classes):
    """Batch norm, strides, leaky ReLU, average pooling, dropout, a global average."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, 3, stride=2, bias=False),
        nn.BatchNorm2d(8),
        nn.LeakyReLU(0.1),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, classes),
    )


class Norms(nn.Module):
    """Group norm, GELU, a residual block, layer norm, tanh."""

    def __init__(self, shape, classes):
        super().__init__()
        self.stem = nn.Conv2d(shape[0], 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.body = nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.LayerNorm(8)
        self.output = nn.Linear(8, classes)

    def forward(self, x):
        x = functional.gelu(self.norm(self.stem(x)))
        x = torch.tanh(x + self.body(x))
        return self.output(self.last(x.mean(dim=(2, 3))))


class Residual(nn.Module):
    """A block of a ResNet with a strided shortcut, batch norm and adding in place."""

    def __init__(self, shape, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 6, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(6)
        self.shortcut = nn.Conv2d(shape[0], 6, 1, stride=2, bias=False)
        self.fc = nn.Linear(6, classes)

    def forward(self, x):
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        out = functional.adaptive_avg_pool2d(functional.relu(out), (1, 1))
        return self.fc(torch.flatten(out, 1))


class Windows(nn.Module):
    """1-D convolutions over a window of measurements."""

    def __init__(self, shape, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(shape[0], 6, 5, stride=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(6, 8, 3, padding=1),
            nn.BatchNorm1d(8),
            nn.ReLU(),
        )
        self.head = nn.Linear(8 * (((shape[1] - 5) // 2 + 1) // 2), classes)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def heart(shape, classes):
    """A dense network of FLamby's kind, with batch norm and dropout."""
    return nn.Sequential(
        nn.Linear(shape[0], 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(16, 8),
        nn.LayerNorm(8),
        nn.Tanh(),
        nn.Linear(8, classes),
    )


class Recurrent(nn.Module):
    """An LSTM over a window, read at its end."""

    def __init__(self, shape, classes):
        super().__init__()
        self.rnn = nn.LSTM(shape[0], 8, batch_first=True)
        self.output = nn.Linear(8, classes)

    def forward(self, x):
        made, _ = self.rnn(x.transpose(1, 2))
        return self.output(made[:, -1])


class Words(nn.Module):
    """An embedding of numbers that stand for words."""

    def __init__(self, shape, classes):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.output = nn.Linear(4 * shape[0], classes)

    def forward(self, x):
        return self.output(self.embedding((x.abs() * 3).long().clamp(max=9)).flatten(1))


class Two(nn.Module):
    """Gives logits and something beside them."""

    def __init__(self, shape, classes):
        super().__init__()
        self.output = nn.Linear(shape[0], classes)

    def forward(self, x):
        return self.output(x), x


NETWORKS = {
    "flower": (Flower, (1, 28, 28)),
    "flower-colour": (Flower, (3, 32, 32)),
    "leaf": (Leaf, (1, 28, 28)),
    "pfllib": (pfllib, (1, 28, 28)),
    "fl4health": (fl4health, (3, 16, 16)),
    "norms": (Norms, (3, 12, 12)),
    "residual": (Residual, (3, 12, 12)),
    "windows": (Windows, (3, 30)),
    "heart": (heart, (13,)),
    "recurrent": (Recurrent, (3, 10)),
    "words": (Words, (6,)),
}
"""By name: what makes the network of (shape of a row, classes), and such a shape."""
