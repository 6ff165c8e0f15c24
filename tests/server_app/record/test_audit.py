import json
import logging

import federations
import pytest
from flwr.app import Context, RecordDict

from common import logs
from common.config import Settings
from common.errors import RoundError
from common.logs import JsonFormatter
from deploy.simulation.grid import InProcessGrid, simulate
from server_app import app as server
from server_app.record import audit
from server_app.record.format import RoundLine
from server_app.record.run_folder import RunFolder

log = logging.getLogger("coterie")
SMALL = {"num-clients": 4, "num-server-rounds": 2, "local-epochs": 1, "workers": 1}


def events(folder):
    return [json.loads(line) for line in (folder / audit.FILE).read_text().splitlines()]


def test_a_run_leaves_who_joined_what_left_and_how_it_ended(tmp_path, no_report):
    path = simulate(Settings.parse(SMALL | {"output-dir": str(tmp_path)}))
    trail = events(path)
    assert trail[0]["event"] == "started"
    assert trail[-1] == {"time": trail[-1]["time"], "event": "finished", "round": 2}
    joined = [entry for entry in trail if entry["event"] == "joined"]
    assert [entry["site"] for entry in joined] == ["site-0", "site-1", "site-2", "site-3"]
    assert all(entry["num_examples"] > 0 and "model" in entry["releases"] for entry in joined)
    ended = [(entry["round"], entry["attempt"]) for entry in trail if entry["event"] == "round"]
    written = RunFolder(path).each(RoundLine)
    assert ended == [(line.round, line.attempt) for line in written]
    released = [entry for entry in trail if entry["event"] == "released"]
    kinds = [entry["what"].split(",")[0].split(":")[0] for entry in released]
    per_round = ["trained model", "loss and score on the held-out rows"]
    assert kinds == ["who the site is", "training rows per class", *per_round, *per_round]
    assert [len(entry["sites"]) for entry in released[:2]] == [4, 4]
    assert [entry["time"] for entry in trail] == sorted(entry["time"] for entry in trail)


def run_with(misbehaviour, tmp_path, **changes):
    settings = Settings.parse(SMALL | {"strategy": "fedavg", "output-dir": str(tmp_path)} | changes)
    run_config = settings.to_dict()
    context = Context(1, 1, {}, RecordDict(), dict(run_config))
    with InProcessGrid(federations.load(misbehaviour), run_config, num_nodes=4, workers=1) as grid:
        server.app(grid, context)
    return server.run_folder_of(context)


def test_rejected_updates_are_told_with_site_and_reason(tmp_path, no_report):
    trail = events(run_with(federations.sends_nan, tmp_path))
    rejected = [entry for entry in trail if entry["event"] == "rejected"]
    assert [(entry["round"], entry["site"]) for entry in rejected] == [(1, "site-2"), (2, "site-2")]
    assert all("NaN" in entry["reason"] for entry in rejected)


def test_a_failed_run_says_why_and_stays_readable(tmp_path, no_report):
    with pytest.raises(RoundError):
        run_with(federations.sends_nan, tmp_path, **{"on-bad-update": "fail"})
    [path] = tmp_path.iterdir()
    assert events(path)[-1]["event"] == "failed"
    assert "NaN" in events(path)[-1]["error"]


def test_a_trail_is_only_appended_to_and_ends_with_its_run(tmp_path):
    folder = RunFolder(tmp_path)
    for site in ("a", "b"):
        with audit.trail(folder, log):
            log.warning("%s left", site, extra=logs.fact("left", site=site))
            log.warning("no fact")
    log.warning("not of a run", extra=logs.fact("left", site="c"))
    assert [entry["site"] for entry in events(tmp_path)] == ["a", "b"]


def test_what_cannot_be_written_stops_the_run(tmp_path):
    folder = RunFolder(tmp_path / "gone")
    with audit.trail(folder, log), pytest.raises(FileNotFoundError):
        log.warning("a left", extra=logs.fact("left", site="a"))


def test_json_lines_carry_the_facts():
    fact = logs.facts("joined", [{"site": "a"}, {"site": "b"}])
    record = log.makeRecord("coterie", 30, "f", 1, "%d joined", (2,), None, extra=fact)
    line = json.loads(JsonFormatter().format(record))
    assert (line["level"], line["source"], line["message"]) == ("warning", "run", "2 joined")
    assert [entry["site"] for entry in line["audit"]] == ["a", "b"]


def test_json_lines_stay_one_line_each():
    record = log.makeRecord("coterie", 20, "f", 1, 'two\nlines and "quotes"', (), None)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert json.loads(text)["message"] == 'two\nlines and "quotes"'
    assert "audit" not in json.loads(text)
