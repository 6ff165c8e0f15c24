"""Task: a small network on scikit-learn's digits; a site has small ones, or large ones."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

NUM_CLASSES = 10


class Net(nn.Module):
    """A hidden layer of 32 units."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, NUM_CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each class."""
        return self.layers(x)


def load_data(partition_id: int, num_partitions: int) -> tuple[TensorDataset, TensorDataset]:
    """Return a site's training rows and its held-out rows."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(42)
    # Even sites have the digits 0 to 4, odd ones 5 to 9.
    kind = np.flatnonzero((y > 4) == partition_id % 2)
    peers = range(partition_id % 2, num_partitions, 2)
    rows = np.array_split(rng.permutation(kind), len(peers))[partition_id // 2]
    rows = rng.permutation(rows)
    images, labels = torch.tensor(x[rows] / 16, dtype=torch.float32), torch.tensor(y[rows])
    held_out = len(rows) // 5
    return (
        TensorDataset(images[held_out:], labels[held_out:]),
        TensorDataset(images[:held_out], labels[:held_out]),
    )


def train(net: Net, rows: TensorDataset, epochs: int, learning_rate: float, batch: int) -> float:
    """Train the network, and return its mean loss over the last epoch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
    loader = DataLoader(rows, batch_size=batch, shuffle=True)
    for _ in range(epochs):
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
    return total / len(rows)


def test(net: Net, rows: TensorDataset) -> tuple[float, float]:
    """Return the network's mean loss on some rows, and its accuracy."""
    images, labels = rows.tensors
    with torch.no_grad():
        scores = net(images)
        loss = nn.functional.cross_entropy(scores, labels).item()
    return loss, (scores.argmax(dim=1) == labels).double().mean().item()
