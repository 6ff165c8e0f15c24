"""Every method of the catalogue on Fashion-MNIST, as in Pereira et al., section V.

    python benchmarks/label_methods.py --data-dir ~/data --rounds 150 --seeds 2

100 sites of which 10 train per round, MLP 784-64-30-10 with dropout, SGD with learning rate 0.01,
momentum 0.5, batches of 64 rows, 10 local epochs, on the (1,2)- and (1,5)-Dirichlet splits. A run
that finished is not repeated: what was cut off is taken up with the same command. Every finished
run is a row of ``figures.json`` in the output folder; the table is made from those.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from common.config import Settings
from deploy.simulation.grid import simulate
from server_app.record import accuracy_figures
from server_app.record.format import RoundLine
from server_app.record.run_folder import RunFolder

METHODS: dict[str, dict[str, object]] = {
    "random": {},
    "similarity": {"metric": "euclidean"},
    "simclust": {"num-clusters": 10},
    "simclust-partitions": {"strategy": "simclust"},
    "repclust": {},
    "power-of-choice": {},
    "fedcor": {},
    "clustered-sampling-size": {},
    "clustered-sampling-similarity": {},
    "delta": {},
    "flis": {},
}
"""What a method is given beyond the settings of all.

SimClust has as many clusters as clients train in a round, and once as many as there are partitions.
"""
PARTITIONS = (2, 5)
TARGETS = (0.5, 0.6)
PAPER: dict[str, object] = {
    "dataset": "fashion-mnist",
    "model": "pereira-mlp",
    "num-clients": 100,
    "clients-per-round": 10,
    "learning-rate": 0.01,
    "momentum": 0.5,
    "batch-size": 64,
    "local-epochs": 10,
    "split": "dirichlet-partitioned",
    "dirichlet-alpha": 1,
}


@dataclass(frozen=True)
class Scenario:
    """One run of the experiment."""

    method: str
    partitions: int
    """rho: blocks of classes that a site's rows can come from."""
    seed: int
    rounds: int

    @property
    def key(self) -> str:
        """Name of the run among the finished ones."""
        return f"{self.method} rho={self.partitions} seed={self.seed} rounds={self.rounds}"


@dataclass(frozen=True)
class Figures:
    """What is reported of one run; None where the accuracy was not held for the window."""

    sustained: float | None
    tail_mean: float
    tail_deviation: float
    rounds_to: list[int | None]
    bytes: int

    @classmethod
    def of(cls, folder: Path, window: int) -> "Figures":
        """Return the figures of a finished run's folder."""
        lines = list(RunFolder(folder).each(RoundLine))
        curve = [line.score for line in lines if line.models]
        last = accuracy_figures.tail(curve, window)
        return cls(
            accuracy_figures.sustained_accuracy(curve, window),
            last.mean,
            last.deviation,
            [accuracy_figures.rounds_to_sustain(curve, target, window) for target in TARGETS],
            sum((line.bytes_down or 0) + (line.bytes_up or 0) for line in lines),
        )


def scenarios(arguments: argparse.Namespace) -> Iterator[Scenario]:
    """Yield all runs, one seed after another, so that a table exists early."""
    for seed in range(arguments.seeds):
        for partitions in PARTITIONS:
            for method in arguments.methods:
                yield Scenario(method, partitions, seed, arguments.rounds)


def settings_of(scenario: Scenario, arguments: argparse.Namespace) -> Settings:
    """Return the settings of one run."""
    return Settings.parse(
        PAPER
        | {"strategy": scenario.method}
        | METHODS[scenario.method]
        | _partitions_as_clusters(scenario)
        | {
            "num-partitions": scenario.partitions,
            "seed": scenario.seed,
            "num-server-rounds": scenario.rounds,
            "data-dir": arguments.data_dir,
            "output-dir": str(arguments.output / "runs"),
            "name": scenario.method,
            "workers": arguments.workers,
        }
        | ({"local-epochs": 1} if arguments.quick else {})
    )


def _partitions_as_clusters(scenario: Scenario) -> dict[str, object]:
    wanted = scenario.method == "simclust-partitions"
    return {"num-clusters": scenario.partitions} if wanted else {}


def play(arguments: argparse.Namespace, window: int) -> dict[str, Figures]:
    """Run what has not finished yet, and return the figures of every run asked for."""
    file = arguments.output / "figures.json"
    done = json.loads(file.read_text()) if file.exists() else {}
    for scenario in scenarios(arguments):
        if scenario.key not in done:
            print(f"-- {scenario.key}", flush=True)
            folder = simulate(settings_of(scenario, arguments))
            done[scenario.key] = asdict(Figures.of(folder, window)) | {"folder": folder.name}
            temporary = file.with_suffix(".part")
            temporary.write_text(json.dumps(done, indent=1) + "\n")
            temporary.replace(file)
    for entry in done.values():
        entry.pop("folder")
    return {s.key: Figures(**done[s.key]) for s in scenarios(arguments)}


def table(found: dict[str, Figures], arguments: argparse.Namespace, window: int) -> str:
    """Return the figures as Markdown: means over the seeds, best sustained accuracy first."""
    head = (
        f"| method | split | best accuracy held {window} rounds "
        f"| last {window} rounds, mean ± sd | "
        + " | ".join(f"rounds to hold {target}" for target in TARGETS)
        + " | GB sent |\n|"
        + "---|" * (5 + len(TARGETS))
    )
    rows = []
    for partitions in PARTITIONS:
        per_method = {
            method: [
                found[Scenario(method, partitions, seed, arguments.rounds).key]
                for seed in range(arguments.seeds)
            ]
            for method in arguments.methods
        }
        order = sorted(per_method, key=lambda method: -_mean_sustained(per_method[method]))
        rows += [_row(method, partitions, per_method[method]) for method in order]
    return "\n".join([head, *rows])


def _mean_sustained(runs: list[Figures]) -> float:
    return float(np.mean([run.sustained or 0.0 for run in runs]))


def _row(method: str, partitions: int, runs: list[Figures]) -> str:
    held = [run.sustained for run in runs]
    cells = [
        method,
        f"(1,{partitions})-Dir",
        "-" if None in held else " / ".join(f"{100 * (value or 0):.2f} %" for value in held),
        " / ".join(f"{100 * r.tail_mean:.2f} ± {100 * r.tail_deviation:.2f} %" for r in runs),
        *(" / ".join(str(run.rounds_to[i] or "-") for run in runs) for i in range(len(TARGETS))),
        f"{np.mean([run.bytes for run in runs]) / 1e9:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Play, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--data-dir", default="", help="folder with the Fashion-MNIST files")
    parser.add_argument("--output", type=Path, default=Path("runs/label-methods"))
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="4 rounds, 1 epoch, windows of 2")
    arguments = parser.parse_args()
    window = accuracy_figures.WINDOW
    if arguments.quick:
        arguments.rounds, window = 4, 2
        arguments.output = arguments.output.with_name(arguments.output.name + "-quick")
    arguments.output.mkdir(parents=True, exist_ok=True)
    text = table(play(arguments, window), arguments, window)
    command = shlex.join(["python", "benchmarks/label_methods.py", *sys.argv[1:]])
    page = f"`{command}`, one value per seed\n\n{text}\n"
    (arguments.output / "table.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
