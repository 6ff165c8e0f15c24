"""Progress of a comparison in its line, the terminal's table, and what Python gets."""

import time

import pytest
from compared_runs import compared

from deploy.compare.compare import _words
from deploy.compare.figures import rows_of
from deploy.compare.runs import Outcome, Progress
from deploy.compare.tables import short


def progress(**more):
    return Progress(total=4, found=0, began=time.monotonic() - 10, ended=[], **more)


def test_a_line_says_the_rounds_of_running_runs_and_the_time_left_before_one_ends():
    seen = progress(running=2, at=((5, 20), (5, 20)))
    assert seen.seconds_left == pytest.approx(70, rel=0.01)  # half a run of four in ten seconds
    assert _words(seen) == ("0 of 4 runs done, 2 running (round 5, 5 of 20), about 70 s left")
    assert progress(running=2, at=((0, 20), (0, 20))).seconds_left is None


def test_a_line_says_why_a_run_failed(tmp_path):
    grid, _ = compared(tmp_path)
    seen = progress()
    seen.ended.append(Outcome(grid.cases[0], None, "no such file\nits log: there"))
    assert _words(seen).endswith("seed 0 FAILED: no such file")


def test_the_terminals_table_has_six_columns_under_the_metrics_name(tmp_path):
    grid, runs = compared(tmp_path)
    head = short(rows_of(runs, grid.reference), grid).splitlines()[0]
    names = [cell.strip() for cell in head.strip("|").split("|")]
    assert len(names) == 6
    assert names[:2] == ["method", "seeds"]
    assert "accuracy (%)" in names
