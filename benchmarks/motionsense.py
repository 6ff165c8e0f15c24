"""FedSCCS against its baselines on MotionSense, a table over seeds; resumes where it was cut off.

    python benchmarks/motionsense.py --data-dir DATA --work-dir WORK --table TABLE.md

Every run is one line of WORK/results.jsonl; a run that has a line is not repeated.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from common.config import Settings
from common.data import readers
from common.data.readers import DataFolder
from deploy.simulation.grid import simulate
from server_app.record.format import ResultsFile
from server_app.record.run_folder import RunFolder

BASELINES = ("random-clusters", "kcenter", "wc", "fedsccs")
SELECTIONS = ("all", "random", "worst")
VARIANTS = (("fedavg", "auto"), *((name, rule) for name in BASELINES for rule in SELECTIONS))
NAMES = {
    "fedavg": "FedAvg",
    "random-clusters": "RC",
    "kcenter": "KCenter",
    "wc": "WC",
    "fedsccs": "FedSCCS",
}
RULES = {"auto": "everybody", "all": "all", "random": "one", "worst": "worst half"}
FIGURES = ("score", "score_worst_decile", "score_std", "uplink_share")


def arguments() -> argparse.Namespace:
    """Return the command line's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="holds MotionSense/")
    parser.add_argument("--work-dir", type=Path, required=True, help="runs and results")
    parser.add_argument("--table", type=Path, required=True, help="Markdown file to write")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--every", type=int, default=20, help="keep every n-th 50 Hz row")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--methods", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--probe", default="auto", help="the setting cka-probe")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no run after these")
    return parser.parse_args()


def thinned(data_dir: Path, every: int, file: Path) -> Path:
    """Write MotionSense with every n-th row of the series as own data; trials stay whole."""
    if not file.exists():
        rows = readers.motionsense(DataFolder(data_dir, download=False))
        kept = slice(None, None, every)
        assert rows.owner is not None
        assert rows.test is not None
        np.savez_compressed(
            file,
            X=rows.x[kept],
            y=np.array(rows.class_names)[rows.y[kept]],
            client=np.array(rows.owner_names)[rows.owner[kept]],
            test=rows.test[kept].astype(np.int64),
        )
    return file


def settings_of(args: argparse.Namespace, data: Path, name: str, rule: str, seed: int) -> Settings:
    """Return the settings of one run."""
    return Settings.parse(
        {
            "dataset": str(data),
            "split": "by-user",
            "num-clients": 24,
            "model": "mlp",
            "batch-size": args.batch_size,
            "local-epochs": 1,
            "learning-rate": args.learning_rate,
            "momentum": 0.0,
            "device": "cpu",
            "engine": "loop",
            "strategy": name,
            "selection": rule,
            "num-clusters": 10,
            "cluster-at-round": 10,
            "cka-probe": args.probe,
            "num-server-rounds": args.rounds,
            "seed": seed,
            "workers": 1,
            "output-dir": str(args.work_dir / "runs"),
            "name": f"{name}-{rule}-{seed}",
        }
    )


def run_all(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a line per run, of this call or an earlier one."""
    args.work_dir.mkdir(parents=True, exist_ok=True)
    results = args.work_dir / "results.jsonl"
    lines = (
        [json.loads(text) for text in results.read_text().splitlines()] if results.exists() else []
    )
    done = {(line["strategy"], line["selection"], line["seed"]) for line in lines}
    data = thinned(args.data_dir, args.every, args.work_dir / f"motionsense-{args.every}.npz")
    until = time.monotonic() + 60 * args.minutes
    for seed in range(args.seeds):
        for name, rule in VARIANTS:
            if name not in args.methods or (name, rule, seed) in done or time.monotonic() > until:
                continue
            folder = simulate(settings_of(args, data, name, rule, seed))
            final = RunFolder(folder).load(ResultsFile)
            line = {"strategy": name, "selection": rule, "seed": seed}
            line |= {key: getattr(final, key) for key in (*FIGURES, "seconds")}
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            lines.append(line)
    return lines


def cell(values: list[float]) -> str:
    """Return mean and spread over seeds in percent."""
    percent = 100 * np.array(values)
    return f"{percent.mean():.1f} ± {percent.std():.1f}"


def table(lines: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    text = (
        "| method | who trains | seeds | accuracy (%) | worst decile of clients (%) "
        "| spread over clients | uplink share (%) |\n|---|---|---|---|---|---|---|\n"
    )
    for name, rule in VARIANTS:
        mine = [line for line in lines if (line["strategy"], line["selection"]) == (name, rule)]
        if mine:
            cells = " | ".join(cell([line[key] for line in mine]) for key in FIGURES)
            text += f"| {NAMES[name]} | {RULES[rule]} | {len(mine)} | {cells} |\n"
    return text


def main() -> None:
    """Run what is missing and write the table."""
    args = arguments()
    lines = run_all(args)
    args.table.write_text(table(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
