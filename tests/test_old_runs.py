"""Runs written before the redesign load, go on, are reported and stand in comparisons."""

import csv
import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from made_folders import Reader, report
from safetensors.numpy import load_file
from typer.testing import CliRunner

from common import config
from deploy.cli import app
from deploy.simulation.grid import simulate
from server_app.record.run_folder import RunFolder
from server_app.record.using_models import load_network

OLD_RUNS = Path(__file__).parent / "fixtures" / "old-runs"
NAMES = sorted(path.name for path in OLD_RUNS.iterdir())
ELSEWHERE = ("output-dir", "name", "workers", "resume")
SIMILARITIES = [("0.555", "0.016"), ("0.156", "0.509")]
"""What the old code said of the models of ``personal-models``'s two clusters."""
ALONE = {"strategy": "fedavg", "objective": "local", "selection": "auto", "num-clusters": 0}
COSTS = ("seconds", "bytes", "joules", "kg_co2e")


def interrupted(name: str, parent: Path) -> Path:
    """A copy of a run as it was when its server was killed in round 3."""
    source = OLD_RUNS / name / "interrupted"
    digest = tomllib.loads((source / "config.toml").read_text())["name"]
    return shutil.copytree(source, parent / f"{digest}-20261122T070000Z-0f5dc2")


def finished(name: str, parent: Path) -> Path:
    """A copy of the same run that nobody killed."""
    run = interrupted(name, parent)
    shutil.rmtree(run / "checkpoints")
    return shutil.copytree(OLD_RUNS / name / "finished", run, dirs_exist_ok=True)


def coterie(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def figures(line: dict) -> dict:
    return {key: value for key, value in line.items() if not any(word in key for word in COSTS)}


def answers(path: Path) -> dict:
    """What each site said of its training and its held-out rows, by round."""
    found = [figures(line) for line in lines(path) if line["phase"] in ("train", "evaluate")]
    return {(line["round"], line["phase"], line["site"]): line for line in found}


def check_holds(new, old, where=""):
    """All that an old record says is still said, numbers within 1e-6; there may be more."""
    if isinstance(old, dict):
        for key, value in old.items():
            check_holds(new[key], value, f"{where}.{key}")
    elif isinstance(old, list):
        assert len(new) == len(old), where
        for one, other in zip(new, old, strict=True):
            check_holds(one, other, where)
    elif isinstance(old, float):
        assert new == pytest.approx(old, rel=0, abs=1e-6), where
    else:
        assert new == old, where


def check_report(run: Path, page: Reader) -> None:
    results = json.loads((run / "results.json").read_text())
    assert page.fact("Accuracy at the end") == f"{100 * results['accuracy']:.1f} %"
    assert page.fact("Rounds") == "3 of 3"
    assert "could be read" not in page.text  # the note on files that could not
    pictures = {path.stem for path in (run / "plots").glob("*.svg")}
    assert pictures >= {"progress", "participation", "traffic", "dissimilarities"}


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """Every old run after it was resumed, and what its sites had said before the crash."""
    found = {}
    for name in NAMES:
        run = interrupted(name, tmp_path_factory.mktemp("interrupted"))
        before = answers(run / "clients.jsonl")  # the lines of round 3 as well: it is played again
        assert max(server_round for server_round, _, _ in before) == 3
        assert simulate(config.load(run / "config.toml", [f"resume={run}"])) == run
        found[name] = run, before
    return found


@pytest.mark.parametrize("name", NAMES)
def test_an_old_run_goes_on_and_ends_with_the_figures_it_would_have_had(name, resumed):
    (run, before), whole = resumed[name], OLD_RUNS / name / "finished"
    old, new = lines(whole / "rounds.jsonl"), lines(run / "rounds.jsonl")
    check_holds([figures(line) for line in new], [figures(line) for line in old])
    check_holds(answers(run / "clients.jsonl"), before)
    results = [figures(json.loads((at / "results.json").read_text())) for at in (run, whole)]
    assert results[1].pop("sites")  # what each site cost
    check_holds(*results)
    for path in sorted((whole / "models").iterdir()):
        model = load_file(run / "models" / path.name)
        for key, value in load_file(path).items():
            np.testing.assert_allclose(model[key], value, rtol=0, atol=1e-6)
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
    page = Reader((run / "report.html").read_text())
    assert "The run finished after 3 rounds." in page.text
    check_report(run, page)


def test_personal_models_of_an_old_checkpoint_are_found_again(resumed):
    """They are kept under a digest of the settings, which a new setting must not change."""
    run, before = resumed["personal-models"]
    after = answers(run / "clients.jsonl")
    own = [key for key in before if key[:2] == (3, "evaluate")]
    assert len(own) == 3
    for key in own:
        # A site that had lost its own model would go on from the common one.
        assert before[key]["loss"] != pytest.approx(before[key]["shared_loss"], abs=1e-3)
        assert after[key]["loss"] == pytest.approx(before[key]["loss"], rel=0, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_models_of_an_old_run_load(name, tmp_path):
    run = finished(name, tmp_path)
    used = sorted((OLD_RUNS / name / "finished" / "models").iterdir())
    for number, path in enumerate(used):
        loaded = load_network(run, number).state_dict()
        written = load_file(path)
        assert loaded.keys() == written.keys()
        assert all(np.array_equal(loaded[key].numpy(), written[key]) for key in written)


def test_a_new_site_is_assigned_to_a_cluster_of_an_old_run(tmp_path):
    run = finished("personal-models", tmp_path)
    for cluster, similarities in enumerate(SIMILARITIES):
        said = coterie("assign", run, run / "models" / f"cluster-{cluster}.safetensors")
        assert said.splitlines() == [
            *(f"cluster {k}: mean CKA {value}" for k, value in enumerate(similarities)),
            f"model: {run / 'models' / f'cluster-{cluster}.safetensors'}",
        ]


def test_a_finished_old_run_is_reported_with_its_own_figures(tmp_path):
    run = finished("personal-models", tmp_path)
    check_report(run, report(RunFolder(run)))


def test_an_old_run_is_held_against_a_new_one_of_training_alone(tmp_path):
    run = finished("ot-groups", tmp_path)
    words = [f"{key}={value}" for key, value in ALONE.items()]
    given = [*words, f"output-dir={tmp_path}", "name=alone"]
    alone = simulate(config.load(run / "config.toml", given))
    said = coterie("against-local", run, alone).splitlines()
    assert [line.partition(":")[0] for line in said] == [*(f"site-{n}" for n in range(4)), "mean"]
    check_report(run, Reader((run / "report.html").read_text()))


@pytest.mark.slow
def test_a_comparison_finds_old_runs_and_adds_a_new_one(tmp_path):
    runs = tmp_path / "both" / "runs"
    old = {name: finished(name, runs) for name in NAMES}
    written = {name: (run / "status.json").stat().st_mtime_ns for name, run in old.items()}
    methods = {name: tomllib.loads((run / "config.toml").read_text()) for name, run in old.items()}
    methods["new"] = methods["ot-groups"] | ALONE | {"objective": "fedavg"}
    file = tmp_path / "both.toml"
    for settings in methods.values():
        for key in (*ELSEWHERE, "routing"):  # old runs name one that they did not heed
            settings.pop(key, None)
    file.write_text(tomli_w.dumps({"methods": methods}))
    said = coterie("compare", file, f"output-dir={tmp_path}", "--jobs=1")
    assert "3 of 4 runs done, 3 were there already" in said
    assert {run.name for run in old.values()} < {path.name for path in runs.iterdir()}
    assert {n: (run / "status.json").stat().st_mtime_ns for n, run in old.items()} == written
    with (tmp_path / "both" / "runs.csv").open() as table:
        rows = {row["method"]: row for row in csv.DictReader(table)}
    assert rows.keys() == methods.keys()
    for name, run in old.items():
        accuracy = json.loads((run / "results.json").read_text())["accuracy"]
        assert float(rows[name]["accuracy"]) == pytest.approx(100 * accuracy, abs=1e-6)
        assert rows[name]["folder"] == run.name
