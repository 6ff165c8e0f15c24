"""Recorded runs: they stand for the runs they were made of, on another machine too."""

import csv
import json
import lzma
import shutil

import pytest
from typer.testing import CliRunner

from common import power
from common.errors import ConfigError
from deploy.cli import app
from deploy.compare.columns import COLUMNS
from deploy.compare.figures import Row, RunFigures
from deploy.compare.grid import read_grid
from deploy.compare.recorded import lay_out, record
from deploy.compare.runs import Outcome, finished, play

WORDS = ("num-clients=4", "num-server-rounds=2", "local-epochs=1", "clients-per-round=2")
GRID = (*WORDS, "strategy=random", "seed=0..1")


def grid(folder, *words):
    return read_grid(None, [*GRID, f"output-dir={folder}", *words])


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Two finished runs and the folder with their records."""
    folder = tmp_path_factory.mktemp("played")
    (folder / "runs").mkdir()
    outcomes = play(grid(folder).cases, folder, 2, lambda progress: None)
    record(folder / "records", outcomes)
    return outcomes, folder / "records"


def figures(case, folder):
    """What a table has of one run, by column; and who trained how often."""
    run = RunFigures.of(case, folder)
    alone = Row("", "", (run,), (run,))
    return {column.key: column.of(alone).mean for column in COLUMNS} | {"trained": run.trained}


def test_figures_are_those_of_the_run_without_its_models(played, tmp_path):
    outcomes, records = played
    here = grid(tmp_path, f"data-dir={tmp_path}").cases
    lay_out(records, here, tmp_path)
    for outcome, case in zip(outcomes, here, strict=True):
        folder = finished(case, tmp_path)
        assert folder is not None
        assert not (folder / "models").exists()
        here, there = figures(case, folder), figures(outcome.case, outcome.folder)
        assert here.pop("trained").tolist() == there.pop("trained").tolist()
        assert here == pytest.approx(there, rel=2e-6, nan_ok=True)


def test_nothing_is_played_that_is_recorded(played, tmp_path):
    _, records = played
    before = {path: path.read_bytes() for path in records.iterdir()}
    words = ["compare", *GRID, f"output-dir={tmp_path}", "--recorded", str(records)]
    said = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "2 were there already" in said.output
    assert not list((tmp_path / "comparison" / "runs").glob("*.log"))
    assert {path: path.read_bytes() for path in records.iterdir()} == before


def test_what_is_played_is_added(tmp_path):
    words = ["compare", *WORDS, "strategy=fedavg", "clients-per-round=0", f"output-dir={tmp_path}"]
    words.remove("clients-per-round=2")
    said = CliRunner().invoke(
        app, [*words, "--recorded", str(tmp_path / "records")], catch_exceptions=False
    )
    assert said.exit_code == 0
    [path] = (tmp_path / "records").iterdir()
    content = json.loads(lzma.decompress(path.read_bytes()))
    assert content["settings"]["strategy"] == "fedavg"
    assert content["cpu"] == power.processor()
    assert [line["round"] for line in content["rounds.jsonl"]] == [1, 2]


def test_records_are_small_and_name_no_place(played):
    _, records = played
    for path in records.iterdir():
        assert path.stat().st_size < 4000
        text = lzma.decompress(path.read_bytes()).decode()
        assert "data-dir" not in text
        assert str(records.parent) not in text


def test_another_target_is_a_figure_of_the_same_record_and_another_seed_is_not(played, tmp_path):
    _, records = played
    lay_out(records, grid(tmp_path, "target-accuracy=0.1").cases, tmp_path)
    assert len(list(tmp_path.glob("*-recorded"))) == 2
    with pytest.raises(ConfigError, match="given twice"):
        grid(tmp_path, "seed=7")
    other = read_grid(None, [*WORDS, "strategy=random", "seed=7", f"output-dir={tmp_path}"])
    lay_out(records, other.cases, tmp_path)
    assert finished(other.cases[0], tmp_path) is None


def changed(content):
    return content | {"settings": content["settings"] | {"seed": 99}}


def without_rounds(content):
    return {key: value for key, value in content.items() if key != "rounds.jsonl"}


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda data, content: data[:50], "cannot be read"),
        (lambda data, content: b"", "cannot be read"),
        (lambda data, content: lzma.compress(b"[1, 2]"), "cannot be read"),
        (lambda data, content: packed(without_rounds(content)), "cannot be read"),
        (lambda data, content: packed(changed(content)), "its settings are not those of random"),
    ],
    ids=["cut", "empty", "list", "no rounds", "other settings"],
)
def test_damaged_record_is_named_and_nothing_is_laid_out(played, tmp_path, made, says):
    outcomes, records = played
    broken = tmp_path / "records"
    broken.mkdir()
    for path in records.iterdir():
        data = path.read_bytes()
        (broken / path.name).write_bytes(made(data, json.loads(lzma.decompress(data))))
    with pytest.raises(ConfigError, match=says) as error:
        lay_out(broken, [outcome.case for outcome in outcomes], tmp_path / "runs")
    assert str(broken) in str(error.value)
    assert not (tmp_path / "runs").exists()


def packed(content):
    return lzma.compress(json.dumps(content).encode())


def test_run_that_failed_leaves_no_record(tmp_path):
    [case, _] = grid(tmp_path).cases
    record(tmp_path / "records", [Outcome(case, None, "no")])
    assert not (tmp_path / "records").exists()


TURNED = (
    *("dataset=digits-2-turns", "split=by-user", "num-clients=20"),
    *("num-server-rounds=1", "local-epochs=1"),
)


@pytest.mark.slow
def test_groups_at_the_end_are_recorded_and_held_against_the_planted_ones(tmp_path):
    file = tmp_path / "two.toml"
    file.write_text(
        '[methods]\nfedavg = { strategy = "fedavg" }\nlocal = { strategy = "fedavg", objective = '
        '"local" }\npacfl = { strategy = "pacfl", pacfl-directions = 1, pacfl-angles = "sum" }\n'
    )
    words = [str(file), *TURNED, f"output-dir={tmp_path}", "name=two"]
    runner, records = CliRunner(), str(tmp_path / "records")
    said = runner.invoke(app, ["compare", *words, "--recorded", records, "--jobs", "1"])
    assert said.exit_code == 0, said.output
    shutil.rmtree(tmp_path / "two")
    again = runner.invoke(app, ["compare", *words, "--recorded", records, "--no-play"])
    assert "3 of 3 runs are there" in again.output
    with (tmp_path / "two" / "table.csv").open() as table:
        found = {row["method"]: row for row in csv.DictReader(table)}
    assert [float(found[name]["agreement_mean"]) for name in found] == [0, 0, 1]
    assert [found[name]["num_clusters_mean"] for name in found] == ["", "", "2"]


def test_what_is_not_there_is_an_empty_cell_and_nothing_is_played(played, tmp_path):
    _, records = played
    words = ["compare", *GRID[:-1], "seed=0..2", f"output-dir={tmp_path}", "--no-play"]
    said = CliRunner().invoke(app, [*words, "--recorded", str(records)], catch_exceptions=False)
    assert said.exit_code == 0
    assert "2 of 3 runs are there" in said.output
    assert "2 of 3 runs</span>" in (tmp_path / "comparison" / "comparison.html").read_text()
    assert not list((tmp_path / "comparison" / "runs").glob("*.log"))
    empty = CliRunner().invoke(app, [*words[:-2], f"output-dir={tmp_path / 'x'}", "--no-play"])
    assert empty.exit_code != 0
    assert "none of the 3 runs is there; leave --no-play out" in str(empty.exception or "")
