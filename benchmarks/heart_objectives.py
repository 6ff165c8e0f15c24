r"""Local objectives on heart-disease: four hospitals, each with what it uses in the end.

    python -m benchmarks.heart_objectives --data-dir ~/data --work-dir ~/heart \
        --page docs/results/heart-disease-objectives.md

The seed draws the held-out rows, the first model and the order of the rows. A run that was measured
is not repeated.
"""

import argparse
import json
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from common.config import Settings
from common.data.readers import HOSPITALS
from common.objectives import OBJECTIVES
from deploy.simulation.grid import simulate
from server_app.record.format import ClientLine, RoundLine
from server_app.record.run_folder import RunFolder
from server_app.report import report

Values = dict[str, Any]

COMMON: Values = {
    "dataset": "heart-disease",
    "split": "by-user",
    "num-clients": 4,
    "test-fraction": 0.3,
    "strategy": "fedavg",
    "model": "mlp",
    "batch-size": 16,
    "local-epochs": 3,
    "num-server-rounds": 20,
    "device": "cpu",
    "workers": 1,
    "checkpoint-every": 0,
}


@dataclass(frozen=True)
class Variant:
    """A line of the table."""

    objective: str
    key: str = ""
    strength: float = 0.0

    @property
    def settings(self) -> Values:
        """As settings of a run."""
        example = dict(word.split("=") for word in OBJECTIVES[self.objective].example.split())
        strength = {self.key: self.strength} if self.key else {}
        return {"objective": self.objective} | example | strength

    @property
    def name(self) -> str:
        """As the table has it."""
        return self.objective + (f", {self.key} {self.strength:g}" if self.key else "")


VARIANTS = (
    Variant("local"),
    Variant("fedavg"),
    *(Variant("fedprox", "proximal-mu", mu) for mu in (0.01, 0.1, 1.0)),
    *(Variant("ditto", "personal-lambda", strength) for strength in (0.1, 1.0, 10.0)),
    *(Variant("pfedme", "personal-lambda", strength) for strength in (0.1, 1.0, 10.0)),
    *map(Variant, ("fedper", "lg-fedavg", "fedrep", "fedbabu", "apfl", "fedala")),
    *map(Variant, ("scaffold", "feddyn")),
)


def arguments() -> argparse.Namespace:
    """Return the command line's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="holds HeartDisease/")
    parser.add_argument("--work-dir", type=Path, required=True, help="results.jsonl")
    parser.add_argument("--page", type=Path, required=True, help="Markdown file to write")
    parser.add_argument("--seeds", type=int, default=10)
    return parser.parse_args()


def run(args: argparse.Namespace, variant: Variant, seed: int) -> Values:
    """Return what one run gave: per hospital, and the common model where there is one."""
    with tempfile.TemporaryDirectory() as parent, patch.object(report, "write_report"):
        values = COMMON | variant.settings | {"data-dir": str(args.data_dir), "seed": seed}
        folder = RunFolder(simulate(Settings.parse(values | {"output-dir": parent})))
        *_, last = folder.each(RoundLine)
        lines = list(folder.each(ClientLine))
    evaluated = [line for line in lines if (line.round, line.phase) == (last.round, "evaluate")]
    tuned = {line.site: line.tuned_accuracy for line in lines if line.phase == "fine-tune"}
    objective = OBJECTIVES[variant.objective]
    two = objective.is_personal and objective.shares_model
    return {
        "variant": variant.name,
        "seed": seed,
        "sites": {line.site: line.score for line in evaluated} | tuned,
        "all": last.tuned_score if tuned else last.score,
        "common": last.shared_accuracy if two else None,
    }


def measured(args: argparse.Namespace) -> list[Values]:
    """Return a line per run, of this call or an earlier one."""
    args.work_dir.mkdir(parents=True, exist_ok=True)
    file = args.work_dir / "heart.jsonl"
    lines = [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []
    done = {(line["variant"], line["seed"]) for line in lines}
    for seed in range(args.seeds):
        for variant in VARIANTS:
            if (variant.name, seed) not in done:
                lines.append(run(args, variant, seed))
                with file.open("a", encoding="utf-8") as results:
                    results.write(json.dumps(lines[-1]) + "\n")
    return lines


def table(lines: Sequence[Values]) -> str:
    """Return accuracies in per cent, means over seeds, deviations behind ±."""
    alone = {line["seed"]: line["sites"] for line in lines if line["variant"] == "local"}
    head = ("objective", *HOSPITALS, "all rows", "common model, all rows", "change to local (%)")
    text = f"| {' | '.join(head)} |\n|---|{'---:|' * (len(head) - 1)}\n"
    for variant in VARIANTS:
        mine = [line for line in lines if line["variant"] == variant.name]
        cells = [_cell([100 * line["sites"][name] for line in mine]) for name in HOSPITALS]
        cells.append(_cell([100 * line["all"] for line in mine]))
        shared = [100 * line["common"] for line in mine if line["common"] is not None]
        cells.append(_cell(shared) if shared else "")
        changes = [_change(line["sites"], alone[line["seed"]]) for line in mine]
        cells.append(_cell(changes) if variant.objective != "local" else "")
        text += f"| {variant.name} | {' | '.join(cells)} |\n"
    return text


def _change(sites: Values, alone: Values) -> float:
    """Return 100 (m - m_local)/|m_local|, the mean over the hospitals."""
    return float(np.mean([100 * (sites[s] - alone[s]) / abs(alone[s]) for s in HOSPITALS]))


def _cell(values: Sequence[float]) -> str:
    return f"{np.mean(values):.1f} ± {np.std(values):.1f}"


def main() -> None:
    """Run what is missing and write the table."""
    args = arguments()
    logging.getLogger("coterie").addHandler(logging.NullHandler())  # no line per round
    args.page.write_text(table(measured(args)), encoding="utf-8")


if __name__ == "__main__":
    main()
