"""Clients whose representations are made up."""

import numpy as np


def client(seed, counts=(60, 45), d=6, spread=0.3, world=0):
    """Representations around one direction per class; ``world`` says which directions."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(1000 + world).normal(size=(len(counts), d))
    y = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    return centres[y] + spread * rng.normal(size=(len(y), d)), y


def relu_client(seed, **kwargs):
    h, y = client(seed, **kwargs)
    return np.maximum(h, 0.0), y
