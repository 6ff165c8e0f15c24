"""Link-aware selection: what it saves, from the runs of a comparison.

    python benchmarks/link_aware/table.py runs/digits

Every row is a mean over seeds, with the standard deviation between them; ratios are taken between
the two runs of a seed, which have the same sites, clusters and links.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common import config
from common.config import Settings
from server_app.record.energy_figures import Curve
from server_app.record.format import ResultsFile, RoundLine
from server_app.record.run_folder import RunFolder


@dataclass(frozen=True)
class Run:
    """The figures of one run."""

    settings: Settings
    results: ResultsFile
    sending: Curve

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Return a finished run's figures."""
        files = RunFolder(folder)
        sending = Curve.of(files.each(RoundLine), ("comm",))
        return cls(config.load(folder / "config.toml"), files.load(ResultsFile), sending)

    @property
    def to_target(self) -> tuple[float, float]:
        """Rounds and joules of sending until the target was held; NaN if it never was."""
        target, window = self.settings.target_accuracy, self.settings.sustained_rounds
        reached = self.sending.reached(target, window)
        return (np.nan, np.nan) if reached is None else (reached.last, reached.joules)


COLUMNS: dict[str, Callable[[Run], float]] = {
    "rounds to target": lambda run: run.to_target[0],
    "J of sending to target": lambda run: run.to_target[1],
    "J of sending, all rounds": lambda run: float(run.sending.joules[-1]),
    "accuracy held (%)": lambda run: 100 * run.results.best_sustained,
    "accuracy, last round (%)": lambda run: 100 * run.results.score,
    "worst tenth of sites (%)": lambda run: 100 * run.results.score_worst_decile,
}


def main(folders: list[Path]) -> None:
    """Print a table per comparison."""
    for folder in folders:
        found = sorted(folder.glob(f"runs/**/{ResultsFile.FILE}"))
        runs = [Run.read(path.parent) for path in found]
        by_rule = {
            rule: {run.settings.seed: run for run in runs if run.settings.selection == rule}
            for rule in ("random", "link-aware")
        }
        print(f"\n{folder.name}: seeds {sorted(by_rule['random'])}\n")
        print("| | even | link-aware | link-aware, % of even |")
        print("|---|---|---|---|")
        for name, figure in COLUMNS.items():
            print(row(name, figure, by_rule["random"], by_rule["link-aware"]))


def row(
    name: str, figure: Callable[[Run], float], even: dict[int, Run], aware: dict[int, Run]
) -> str:
    """Return a line of the table."""
    seeds = sorted(even.keys() & aware.keys())
    columns = [np.array([figure(runs[seed]) for seed in seeds]) for runs in (even, aware)]
    ratios = 100 * columns[1] / columns[0]
    return f"| {name} | {said(columns[0])} | {said(columns[1])} | {said(ratios)} |"


def said(values: np.ndarray) -> str:
    """Return mean and deviation of what is known, and of how many if not of all."""
    known = values[np.isfinite(values)]
    if not len(known):
        return "-"
    deviation = known.std(ddof=1) if len(known) > 1 else 0.0
    of = "" if len(known) == len(values) else f" ({len(known)} of {len(values)})"
    return f"{known.mean():.4g} ± {deviation:.2g}{of}"


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
