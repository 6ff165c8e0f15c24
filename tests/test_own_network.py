"""A network of one's own for windows of signals, from Python: what a notebook would hold."""

import numpy as np
import pytest
import torch
from torch import nn

import coterie

SAMPLES = 64  # 1.28 s at 50 Hz


def cnn(shape, classes):
    channels, _ = shape
    return nn.Sequential(
        nn.Conv1d(channels, 32, 9, padding=4),
        nn.ReLU(),
        nn.MaxPool1d(4),
        nn.Conv1d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.AdaptiveMaxPool1d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def windows(folder):
    """MotionSense's samples as windows (7, 64) that follow each other within a recording."""
    samples = coterie.DATASETS["motionsense"].read(folder)
    kind = np.stack([samples.owner, samples.y, samples.test], axis=1)
    changes = np.flatnonzero((np.diff(kind, axis=0) != 0).any(axis=1)) + 1
    ends = np.append(changes, len(kind))
    starts = np.concatenate(
        [np.arange(a, b - SAMPLES + 1, SAMPLES) for a, b in zip([0, *changes], ends, strict=True)]
    )
    x = samples.x[starts[:, None] + np.arange(SAMPLES)].transpose(0, 2, 1)
    parts = (samples.y[starts], samples.class_names, samples.owner[starts], samples.owner_names)
    return coterie.Rows(x, *parts, test=samples.test[starts], kind="windows")


@pytest.mark.slow
@pytest.mark.shared_data
def test_a_network_for_windows_learns_with_adam_and_a_cosine(shared_data, tmp_path):
    run = coterie.simulate(
        dataset=windows,
        data_dir=shared_data,
        split="by-user",
        num_clients=0,
        strategy="random",
        clients_per_round=6,
        model=cnn,
        optimizer="adam",
        learning_rate=0.003,
        schedule="cosine",
        metrics=["macro-f1", "auroc"],
        num_server_rounds=6,
        local_epochs=1,
        workers=1,
        output_dir=tmp_path,
        quiet=True,
    )
    assert run.network()(torch.zeros(2, 7, SAMPLES)).shape == (2, 6)
    assert run.rounds[["metrics.macro-f1", "metrics.auroc"]].notna().all(axis=None)
    first, last = (run.rounds.iloc[place] for place in (0, -1))
    assert last["metrics.macro-f1"] > max(0.6, first["metrics.macro-f1"])
    assert last["metrics.auroc"] > max(0.9, first["metrics.auroc"])
    assert "autograd" in (run.folder / "environment.json").read_text()
