"""Digits of sites in planted groups, and runs on them."""

import numpy as np
from sklearn.datasets import load_digits

from common.config import Settings

FIVE = {
    "num-clients": 5,
    "strategy": "fedsccs",
    "num-clusters": 2,
    "cluster-at-round": 2,
    "num-server-rounds": 3,
    "local-epochs": 1,
    "workers": 1,
    "cka-probe-size": 20,
}


def settings_in(folder, **changes):
    values = FIVE | {key.replace("_", "-"): value for key, value in changes.items()}
    return Settings.parse(values | {"output-dir": str(folder)})


def write_planted(path, turns=(0, 1, 2), sites=4):
    """Digits of 3 x sites sites, those of a group turned by the same multiple of 90 degrees."""
    digits = load_digits()
    rng = np.random.default_rng(0)
    owner = rng.permutation(np.arange(len(digits.target)) % (len(turns) * sites))
    groups = np.array(turns)[owner // sites]
    images = [np.rot90(image, turn) for image, turn in zip(digits.images, groups, strict=True)]
    np.savez(
        path,
        X=np.stack(images).astype(np.uint8)[:, None],
        y=digits.target,
        client=np.array([f"site-{number:02d}" for number in owner]),
        test=(rng.random(len(owner)) < 0.2).astype(int),
    )
    return path


PLANTED = {
    "split": "by-user",
    "num_clients": 12,
    "num_clusters": 3,
    "cluster_at_round": 3,
    "num_server_rounds": 6,
    "local_epochs": 5,
    "batch_size": 8,
    "cka_probe_size": 100,
}
