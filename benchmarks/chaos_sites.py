"""Chaos among real processes: sites and servers of a federation killed, files broken in between.

    python -m benchmarks.chaos_sites --schedules 20 --seed 0

A server and three sites run on this machine as people start them, with TLS and keys. A schedule is
drawn from the seed: what is killed at which attempt, and when. Who was killed is started again, and
the run goes on with ``resume``. With ``on-bad-update=fail`` it stands in the end with the model of
a run that nothing happened to, or every exit on the way says what is wrong; another model with
exit 0, or a traceback, is a failure of this program. ``docs/results/robustness.md`` has the
numbers.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.chaos import GOOD, NAMED, OTHER, SAME, UNTYPED, damage, models
from tests.deployments import PATIENCE, Deployment, deployment

SITES = ("east", "north", "west")
COMMON = {
    "dataset": "thirds",
    "num-clients": len(SITES),
    "num-server-rounds": 3,
    "local-epochs": 1,
    "model": "mlp",
    "on-bad-update": "fail",
    "round-timeout": 300,
}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"strategy": "fedavg"},
    "fedsccs": {"strategy": "fedsccs", "cluster-at-round": 2, "num-clusters": 2},
}
FAULTS = ("server", "site", "server and files", "site and files")
_LATEST = 6.0  # seconds from a message's arrival at a site to the fault


@dataclass(frozen=True)
class Schedule:
    """What happens to a run: a fault for each attempt, in a round and at seconds into it."""

    method: str
    faults: tuple[tuple[str, str, int, float], ...]
    """Each: its kind, the site that it looks at, the message to it that is waited for, seconds."""
    seed: int

    @classmethod
    def drawn(cls, seed: int, number: int) -> "Schedule":
        """Return a schedule of a seed."""
        rng = np.random.default_rng([seed, number])
        faults = tuple(
            (
                str(rng.choice(FAULTS)),
                str(rng.choice(SITES)),
                int(rng.integers(1, 3)),
                float(rng.uniform(0, _LATEST)),
            )
            for _ in range(int(rng.integers(1, 3)))
        )
        return cls(str(rng.choice(sorted(METHODS))), faults, int(rng.integers(2**31)))


class Federation:
    """A server and three sites, each with a third of the digits; plays schedules."""

    def __init__(self, running: Deployment) -> None:
        self._running = running
        self._whole: dict[str, Mapping[str, bytes]] = {}
        digits = load_digits()
        entries = {}
        for place, site in enumerate(SITES):
            path = running.folder / f"{site}.npz"
            rows = slice(place, None, len(SITES))
            np.savez(path, X=digits.data[rows] / 16, y=digits.target[rows])
            entries[site] = {"data-path": str(path)}
        running.provision(entries, {"dataset": "thirds", "device": "cpu"})
        running.serve()
        running.coterie("register", running.server)
        for site in SITES:
            running.start_site(site)

    def outcome(self, schedule: Schedule) -> str:
        """Return what a schedule came to: one of the words of ``benchmarks.chaos``."""
        if schedule.method not in self._whole:
            whole = self._running.run(*_words(schedule.method))
            self._whole[schedule.method] = models(whole)
        rng = np.random.default_rng(schedule.seed)
        known = set(self._runs())
        words = _words(schedule.method)
        said, code = "", 0
        for fault in (*schedule.faults, None):
            start = len(self._running.log("submit"))
            process = self._running.submit(*words)
            if fault is not None:
                self._strike(process, *fault)
            code = process.wait(timeout=PATIENCE)
            said = self._running.log("submit")[start:].strip()
            [run] = set(self._runs()) - known or [None]
            if fault is not None:
                self._mend(fault[0], fault[1])
                if "files" in fault[0] and run is not None:
                    damage(run, rng)
            if code == 0 or run is None:
                break
            words = ["--config", run / "config.toml", f"resume={run}"]
        if "Traceback" in said or code not in (0, 1, 2):
            return f"{UNTYPED}: exit {code}: {said[-400:]}"
        if code:
            return f"{NAMED}: {said.splitlines()[-1] if said else ''}"
        return SAME if run is not None and models(run) == self._whole[schedule.method] else OTHER

    def _runs(self) -> list[Path]:
        folder = self._running.folder / "runs"
        return list(folder.iterdir()) if folder.exists() else []

    def _strike(
        self, process: Popen[bytes], kind: str, site: str, message: int, seconds: float
    ) -> None:
        """Kill a site or the server some seconds after a message has come to the site."""
        wanted = self._trainings(site) + message
        self._running.wait_for(
            f"message {message} to {site}, or the end",
            lambda: self._trainings(site) >= wanted or process.poll() is not None,
        )
        time.sleep(seconds)
        self._running.kill("server" if kind.startswith("server") else site)

    def _mend(self, kind: str, site: str) -> None:
        if kind.startswith("server"):
            self._running.serve()
        else:
            self._running.start_site(site)

    def _trainings(self, site: str) -> int:
        return self._running.log(site).count("Receiving: train message")


def _words(method: str) -> list[str]:
    return [f"{key}={value}" for key, value in {**COMMON, **METHODS[method]}.items()]


def main(words: Sequence[str] | None = None) -> int:
    """Play schedules, print what they came to, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(words)
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, deployment(Path(folder)) as running:
        federation = Federation(running)
        for number in range(asked.schedules):
            schedule = Schedule.drawn(asked.seed, number)
            outcome = federation.outcome(schedule)
            outcomes[outcome.partition(":")[0]] += 1
            print(f"{number}: {schedule.method}, {schedule.faults}: {outcome}", flush=True)
    print(", ".join(f"{word}: {count}" for word, count in sorted(outcomes.items())))
    return 0 if set(outcomes) <= set(GOOD) else 1


if __name__ == "__main__":
    sys.exit(main())
