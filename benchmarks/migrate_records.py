"""Migration: single files of recorded runs become one parquet file a comparison; run once.

    python -m benchmarks.migrate_records SINGLES RECORDS [--check]

SINGLES has a file ``<digest>.json.xz`` a run. Each run goes into the file of the first of
:data:`COMPARISONS` that reads it; one that none reads, into ``other``. ``--check`` writes nothing:
it reads RECORDS with pyarrow alone, and holds every figure of every run against its single file,
under the names of :data:`NAMES`.
"""

import argparse
import json
import lzma
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from deploy.compare.grid import Grid, read_grid
from deploy.compare.records import (
    ALL_DIGITS,
    SIX_DIGITS,
    RunRecord,
    add_records,
    settings_of,
)
from deploy.papers.elements import PAPERS
from server_app.record.clusters_format import ClustersFile
from server_app.record.format import ResultsFile, RoundLine, SiteEntry

HERE = Path(__file__).parent

FILES: Mapping[str, str] = {
    "settings": "settings",
    "packages": "packages",
    "cpu": "cpu",
    "pieces.json": "pieces",
    "results.json": "results",
    "sites.json": "sites",
    "rounds.jsonl": "rounds",
    "clusters.json": "clusters",
}
"""Part of a single file -> column."""

NAMES: Mapping[str, str] = {
    "accuracy": "score",
    "accuracy_std": "score_std",
    "accuracy_worst_decile": "score_worst_decile",
    "shared_accuracy": "shared_score",
    "tuned_accuracy": "tuned_score",
    "best_accuracy": "best_score",
    "best_sustained_accuracy": "best_sustained",
}
"""Former key of a line, a model's entry or the results -> its name since a task has a score of its
own: of a version whose lines have that."""

SCORE = "accuracy"
"""What the score of every recorded run is: all learnt classes, and named no other metric."""

KINDS: Mapping[int, str] = {1: "features", 3: "images"}
"""Kind of a row by its axes, of all data that were recorded, where sites say it."""

NAMED = frozenset({"results", "rounds"})
"""Columns whose keys they are."""

COMPARISONS = (
    ("leaderboard.toml", True, ()),
    *((name, False, ()) for name in ("choosing-k.toml", "choosing-k-hospitals.toml")),
    ("pfllib.toml", False, ()),
    ("who-trains.toml", False, ()),
    ("who-trains.toml", False, ("dirichlet-alpha=0.05", "seed=0..9")),
    ("who-trains.toml", False, ("energy=off",)),
    ("who-trains-few.toml", False, ()),
    ("who-trains-few.toml", False, ("energy=off",)),
    *(
        (f"who-trains-{name}.toml", False, ())
        for name in ("cifar10", "digits", "fmnist", "motionsense", "private", "private-fmnist")
    ),
    ("who-trains-tuned.toml", False, ()),
)
"""File, whether its quick part, and further words."""


def main() -> None:
    """Write the records, or check them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("singles", type=Path)
    parser.add_argument("records", type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.check:
        check(args.singles, args.records)
    else:
        migrate(args.singles, args.records)


def migrate(singles: Path, records: Path) -> None:
    """Write all runs, and say how many each comparison reads."""
    runs = {_key(run.settings): run for run in map(_migrated, sorted(singles.glob("*.json.xz")))}
    print(f"{len(runs)} distinct runs")
    for grid in grids():
        keys = [key for case in grid.cases if (key := _key(settings_of(case))) in runs]
        new = [runs[key] for key in keys if runs[key] is not None]
        print(f"{grid.name}: reads {len(keys)}, {len(new)} of them in its file", flush=True)
        add_records(records, grid.name, new)
        runs |= dict.fromkeys(keys)
    left = [run for run in runs.values() if run is not None]
    print(f"other: {len(left)} that no comparison reads")
    add_records(records, "other", left)


def grids() -> Iterator[Grid]:
    """Yield the comparisons whose runs are recorded, those of papers last."""
    for name, quick, words in COMPARISONS:
        yield read_grid(HERE / name, words, quick=quick)
    for paper in PAPERS:
        for element in paper.elements:
            if not element.experiment:
                name = [f"name={paper.name}-{element.name}"] if element.words else []
                yield read_grid(element.file, [*element.words, *name])


def check(singles: Path, records: Path) -> None:
    """Hold every figure of every run against its single file."""
    there: dict[frozenset[tuple[str, str]], Mapping[str, Any]] = {}
    for path in sorted(records.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(32):
            for row in batch.to_pylist():
                key = _key(dict(row["settings"]))
                if key in there:
                    raise SystemExit(f"{path}: a run is recorded twice: {sorted(key)}")
                there[key] = dict(figures(_plain(row)))
        print(f"{path.name}: {path.stat().st_size} bytes", flush=True)
    counted: Counter[str] = Counter()
    for path in sorted(singles.glob("*.json.xz")):
        content = json.loads(lzma.decompress(path.read_bytes()))
        former = dict(figures(named(content)))
        now = there.pop(_key({k: json.dumps(v) for k, v in content["settings"].items()}))
        if former != now:
            apart = sorted(former.items() ^ now.items())
            raise SystemExit(f"{path}: {len(apart)} figures differ, as {apart[:6]}")
        counted.update(key[0] for key in former)
    if there:
        raise SystemExit(f"{len(there)} runs have no single file")
    print(f"{sum(counted.values())} figures are the same: {dict(counted)}")


def named(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a single file's content under the names that it has now."""
    columns = {FILES[part]: value for part, value in content.items()}
    columns["settings"] = {k: json.dumps(v) for k, v in columns["settings"].items()}
    if "score" in set(RoundLine.keys()):
        columns |= {part: renamed(columns[part]) for part in NAMED}
        columns["results"]["score_name"] = SCORE
        columns["rounds"] = [line | {"score_name": SCORE} for line in columns["rounds"]]
    if "input_kind" in set(SiteEntry.keys()):
        columns["sites"] = [
            site | {"input_kind": KINDS[len(site["input_shape"])]} for site in columns["sites"]
        ]
    return columns


def renamed(value: Any) -> Any:
    """Return lines, a model's entry or results under the keys that they have now."""
    if isinstance(value, list):
        return [renamed(each) for each in value]
    if isinstance(value, dict):
        return {NAMES.get(key, key): renamed(each) for key, each in value.items()}
    return value


def figures(value: Any, *path: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every number and text with the way to it; what is not known is none."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from figures(each, *path, key)
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from figures(each, *path, place)
    elif value is not None and value != "" and not (isinstance(value, float) and math.isnan(value)):
        yield path, value


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of pyarrow's as JSON has it, its rounds' numbers to six digits."""
    short = row["digits"] == SIX_DIGITS
    return {
        key: _value(each, short=short and key == "rounds")
        for key, each in row.items()
        if key != "digits"
    }


def _value(value: Any, *, short: bool) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if short else value
    if isinstance(value, dict):
        return {key: _value(each, short=short) for key, each in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):  # a map
            return {key: _value(each, short=short) for key, each in value}
        return [_value(each, short=short) for each in value]
    return value


def _migrated(path: Path) -> RunRecord:
    columns = named(json.loads(lzma.decompress(path.read_bytes())))
    clusters = columns.get("clusters")
    return RunRecord(
        settings=dict(sorted(columns["settings"].items())),
        packages=columns["packages"],
        cpu=columns.get("cpu") or "",
        pieces=columns.get("pieces") or {},
        results=ResultsFile.from_json(columns["results"]),
        sites=SiteEntry.all_from_json(columns["sites"]),
        rounds=tuple(map(RoundLine.from_json, columns["rounds"])),
        clusters=ClustersFile.from_json(clusters) if clusters else None,
        digits=SIX_DIGITS if _is_short(columns["rounds"]) else ALL_DIGITS,
    )


def _is_short(rounds: Any) -> bool:
    return all(
        float(f"{number:.6g}") == number
        for _, number in figures(rounds)
        if isinstance(number, float)
    )


def _key(settings: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(settings.items())


if __name__ == "__main__":
    main()
