r"""FLamby's heart disease: server optimisers on four hospitals, by FLamby's own constants.

    python -m benchmarks.flamby_heart --data-dir ~/data --work-dir ~/flamby --page flamby-heart.md

Logistic regression, batches of 4, 15 rounds of 100 steps of SGD; the seed draws the held-out rows,
the first model and the order of the rows. FLamby's constants are those of its
config_heart_disease.json. Its network has one logit and ours two, whose difference moves twice as
far in a step: half of its learning rates, the server's too, take the same steps. Features are
standardised here and not there. A run that was measured is not repeated.
"""

import argparse
import json
import logging
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import nn

from common.config import Settings
from common.data.readers import HOSPITALS
from deploy.simulation.grid import simulate
from server_app.record.format import ClientLine, RoundLine
from server_app.record.run_folder import RunFolder
from server_app.report import report

Values = dict[str, Any]


def logistic(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return one linear layer from rows of features to the classes."""
    return nn.Sequential(OrderedDict(output=nn.Linear(shape[0], classes)))


COMMON: Values = {
    "dataset": "heart-disease",
    "split": "by-user",
    "num-clients": 4,
    "test-fraction": 0.34,  # 254 of 740 rows, as many as FLamby holds out
    "strategy": "fedavg",
    "model": "benchmarks.flamby_heart:logistic",
    "batch-size": 4,
    "local-steps": 100,
    "num-server-rounds": 15,
    "learning-rate": 1e-4 / 2,
    "momentum": 0.0,
    "device": "cpu",
    "workers": 1,
    "checkpoint-every": 0,
}
_THEIRS: Values = {"server-beta2": 0.999, "server-tau": 1e-8, "server-learning-rate": 0.01 / 2}
VARIANTS: dict[str, tuple[Values, str]] = {
    "FedAvg": ({}, ".685"),
    "FedAdam": ({"server-optimizer": "adam", **_THEIRS}, ".726"),
    "FedYogi": ({"server-optimizer": "yogi", **_THEIRS}, ".731"),
    "FedAdagrad": (
        {"server-optimizer": "adagrad", "server-tau": 1e-8, "server-learning-rate": 10.0 / 2},
        ".731",
    ),
    "FedAvg, learning-rate ten times as large": ({"learning-rate": 1e-3 / 2}, ""),
    "FedAdam, defaults of Coterie": ({"server-optimizer": "adam"}, ""),
}
"""Settings of each line, and the accuracy that FLamby publishes."""


def arguments() -> argparse.Namespace:
    """Return the command line's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="holds HeartDisease/")
    parser.add_argument("--work-dir", type=Path, required=True, help="flamby.jsonl")
    parser.add_argument("--page", type=Path, required=True, help="Markdown file to write")
    parser.add_argument("--seeds", type=int, default=5)
    return parser.parse_args()


def run(args: argparse.Namespace, variant: str, seed: int) -> Values:
    """Return the accuracy of one run at each hospital and over all rows."""
    values = COMMON | VARIANTS[variant][0] | {"data-dir": str(args.data_dir), "seed": seed}
    with tempfile.TemporaryDirectory() as parent, patch.object(report, "write_report"):
        folder = RunFolder(simulate(Settings.parse(values | {"output-dir": parent})))
        *_, last = folder.each(RoundLine)
        lines = list(folder.each(ClientLine))
    evaluated = [line for line in lines if (line.round, line.phase) == (last.round, "evaluate")]
    sites = {line.site: line.accuracy for line in evaluated}
    return {"variant": variant, "seed": seed, "sites": sites, "all": last.accuracy}


def measured(args: argparse.Namespace) -> list[Values]:
    """Return a line per run, of this call or an earlier one."""
    args.work_dir.mkdir(parents=True, exist_ok=True)
    file = args.work_dir / "flamby.jsonl"
    lines = [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []
    done = {(line["variant"], line["seed"]) for line in lines}
    for seed in range(args.seeds):
        for variant in VARIANTS:
            if (variant, seed) not in done:
                lines.append(run(args, variant, seed))
                with file.open("a", encoding="utf-8") as results:
                    results.write(json.dumps(lines[-1]) + "\n")
    return lines


def table(lines: Sequence[Values]) -> str:
    """Return accuracies, means over seeds, deviations behind ±."""
    head = ("", *HOSPITALS, "each hospital once", "all rows", "FLamby")
    text = f"| {' | '.join(head)} |\n|---|{'---:|' * (len(head) - 1)}\n"
    for variant, (_, published) in VARIANTS.items():
        mine = [line for line in lines if line["variant"] == variant]
        cells = [_cell([line["sites"][name] for line in mine]) for name in HOSPITALS]
        cells.append(_cell([float(np.mean(list(line["sites"].values()))) for line in mine]))
        cells.append(_cell([line["all"] for line in mine]))
        text += f"| {variant} | {' | '.join(cells)} | {published} |\n"
    return text


def _cell(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values):.3f}"


def main() -> None:
    """Run what is missing and write the table."""
    args = arguments()
    logging.getLogger("coterie").addHandler(logging.NullHandler())  # no line per round
    args.page.write_text(table(measured(args)), encoding="utf-8")


if __name__ == "__main__":
    main()
