"""Recorded runs: a small file for each finished run, which stands for it elsewhere.

``<digest>.json.xz`` holds the settings that decide a run's numbers, its figures, its sites, who was
grouped with whom at the end, the lines of its rounds, the versions and the processor that played
it: all that a comparison reads of a run. Neither models nor paths are in it, and numbers of rounds
have six digits.
"""

import hashlib
import json
import lzma
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from common.errors import ConfigError
from deploy.compare.grid import Case, identity
from deploy.compare.runs import Outcome, finished
from server_app.record.clusters_format import ClustersFile
from server_app.record.format import ResultsFile, RoundLine, SiteEntry
from server_app.record.run_folder import CPU, PIECES, RunFolder

__all__ = ["lay_out", "record"]

_LARGEST = 1 << 26  # bytes of a record, unpacked
_PLACES = frozenset({"data-dir"})
"""Of a run's settings those that say where its data lie: another machine has them elsewhere."""
_RESULTS, _SITES, _ROUNDS = ResultsFile.FILE, SiteEntry.FILE, RoundLine.FILE
_CLUSTERS = ClustersFile.FILE  # of a method that groups; records of earlier versions have none
_SETTINGS, _PACKAGES = "settings", "packages"


def lay_out(records: Path, cases: Iterable[Case], runs: Path) -> None:
    """Make a run's folder under ``runs`` of every case that is recorded and not there yet.

    Raises:
        ConfigError: a record that cannot be read, or is of other settings.
    """
    for case in cases:
        path = _path(records, case)
        if path.exists() and finished(case, runs) is None:
            _write_folder(_read(path, case), case, runs)


def record(records: Path, outcomes: Iterable[Outcome]) -> None:
    """Write a record of every finished run that has none yet."""
    for outcome in outcomes:
        path = _path(records, outcome.case)
        if outcome.folder is not None and not path.exists():
            files = RunFolder(outcome.folder)
            environment = files.read_json("environment.json")
            content = {
                _SETTINGS: _settings(outcome.case),
                _PACKAGES: environment.get(_PACKAGES),
                CPU: environment.get(CPU),
                PIECES: files.pieces(),
                _RESULTS: files.read_json(_RESULTS),
                _SITES: files.read_json(_SITES),
                _ROUNDS: _short([line.to_json() for line in files.each(RoundLine)]),
            }
            if (files.path / _CLUSTERS).exists():
                content[_CLUSTERS] = files.read_json(_CLUSTERS)
            text = json.dumps(content, separators=(",", ":"))
            records.mkdir(parents=True, exist_ok=True)
            RunFolder(records).write(path.name, lzma.compress(text.encode(), preset=9))


def _short(value: Any) -> Any:
    """Return a JSON value with its numbers to six digits: all seventeen are most of a record."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [_short(each) for each in value]
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    return value


def _settings(case: Case) -> dict[str, Any]:
    return {key: value for key, value in identity(case.settings).items() if key not in _PLACES}


def _path(records: Path, case: Case) -> Path:
    text = json.dumps(_settings(case), sort_keys=True)
    return records / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json.xz"


def _read(path: Path, case: Case) -> Mapping[str, Any]:
    """Return a record's content, all of its parts there and of this case."""
    try:
        with lzma.open(path) as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ValueError(f"more than {_LARGEST} bytes")
        content = json.loads(data)
        [content[part] for part in (_RESULTS, _SITES, _ROUNDS)]
        settings = content[_SETTINGS]
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}); delete it, and the run is played again"
        ) from None
    if settings != _settings(case):
        raise ConfigError(
            f"{path}: its settings are not those of {case.label}; delete it, and the run is "
            "played again"
        )
    found: Mapping[str, Any] = content
    return found


_NAMES = {
    "accuracy": "score",
    "accuracy_std": "score_std",
    "accuracy_worst_decile": "score_worst_decile",
    "shared_accuracy": "shared_score",
    "tuned_accuracy": "tuned_score",
    "best_accuracy": "best_score",
    "best_sustained_accuracy": "best_sustained",
}
"""What keys of lines and results were called when the runs in ``benchmarks/recorded`` were."""


def _renamed(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line, a model's entry or the results of a record under the keys that they have now.

    All runs that were recorded under the former keys learnt classes and named no metric.
    """
    if "accuracy" not in entry:
        return dict(entry)
    now = {_NAMES.get(key, key): value for key, value in entry.items()}
    now["metrics"] = {"accuracy": entry["accuracy"]}
    if "model" not in entry:
        now["score_name"] = "accuracy"
    if "models" in entry:
        now["models"] = [_renamed(model) for model in entry["models"]]
    return now


def _write_folder(content: Mapping[str, Any], case: Case, runs: Path) -> None:
    name = f"{case.digest}-recorded"
    (runs / name).mkdir(parents=True, exist_ok=True)
    folder = RunFolder(runs / name)
    folder.write("config.toml", case.settings.replace(output_dir=str(runs), name=name).to_toml())
    # Records of earlier versions name no processor.
    folder.write_json("environment.json", {key: content.get(key) for key in (_PACKAGES, CPU)})
    if pieces := content.get(PIECES):
        folder.write_json(PIECES, pieces)
    folder.write_json(_RESULTS, _renamed(content[_RESULTS]))
    folder.write_json(_SITES, content[_SITES])
    if _CLUSTERS in content:
        folder.write_json(_CLUSTERS, content[_CLUSTERS])
    folder.write(_ROUNDS, "".join(json.dumps(_renamed(line)) + "\n" for line in content[_ROUNDS]))
    done = len(content[_ROUNDS])
    # Last, for it makes the folder count.
    folder.set_status("finished", done=done, rounds=case.settings.num_server_rounds)
