"""Update norms of honest runs: how many times the running median the longest update is.

    python -m benchmarks.update_norms --data-dir DIR

``max-update-norm`` must let every one of them pass; docs/results/robustness.md has the table.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from common.config import Settings
from deploy.simulation.grid import simulate
from server_app.rounds import memory, update_norms

ROUNDS = 10
RUNS: Mapping[str, Mapping[str, Any]] = {
    "digits, Dirichlet 0.3, 20 sites": {},
    "digits, Dirichlet 0.05, 20 sites": {"dirichlet-alpha": 0.05},
    "MNIST, Dirichlet 0.05, 50 sites": {
        "dataset": "mnist",
        "num-clients": 50,
        "dirichlet-alpha": 0.05,
        "local-epochs": 1,
    },
    "MNIST, Dirichlet 0.05, 50 sites, SGD 0.1": {
        "dataset": "mnist",
        "num-clients": 50,
        "dirichlet-alpha": 0.05,
        "local-epochs": 1,
        "learning-rate": 0.1,
    },
    "heart disease, 4 hospitals": {
        "dataset": "heart-disease",
        "split": "by-user",
        "num-clients": 4,
    },
    "heart disease, 4 hospitals, 20 local epochs": {
        "dataset": "heart-disease",
        "split": "by-user",
        "num-clients": 4,
        "local-epochs": 20,
    },
    "synthetic, 10 sites, feature shift": {
        "dataset": "synthetic",
        "synthetic-rows": 2_000,
        "num-clients": 10,
        "split": "by-user",
        "shift": "feature",
        "shift-size": 1.0,
    },
    "digits, local-dp": {"update-privacy": "local-dp"},
}


class _Watched(update_norms.UpdateNorms):
    """Remembers the largest ratio of each exchange, and lets everything pass."""

    ratios: list[float]

    def judged(self, answers: Any, models: Any) -> Any:
        """Return the answers as they are."""
        self._factor = 1e300
        norms = [
            update_norms.change_norms([answer.value[1]], models[answer.model])[0]
            for answer in answers
            if answer.value is not None
        ]
        usual = update_norms._median([*self._past, *norms])
        type(self).ratios.append(max(norms) / usual)
        return super().judged(answers, models)


def ratios(words: Mapping[str, Any], folder: str, data_dir: str) -> list[float]:
    """Return for each round the longest update's norm over the median that it is held against."""
    common = {"strategy": "fedavg", "num-server-rounds": ROUNDS, "data-dir": data_dir}
    settings = Settings.parse({**common, **words, "output-dir": folder, "workers": 1})
    _Watched.ratios = []
    memory.UpdateNorms = _Watched  # type: ignore[misc]
    try:
        simulate(settings)
    finally:
        memory.UpdateNorms = update_norms.UpdateNorms  # type: ignore[misc]
    return _Watched.ratios


def main(words: Sequence[str] | None = None) -> int:
    """Play the runs and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default="")
    asked = parser.parse_args(words)
    logging.getLogger("coterie").addHandler(logging.NullHandler())  # no progress between the rows
    print("| run | longest in round 1 | longest in any round |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, run in RUNS.items():
            found = ratios(run, folder, asked.data_dir)
            print(f"| {name} | {found[0]:.1f} | {max(found):.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
