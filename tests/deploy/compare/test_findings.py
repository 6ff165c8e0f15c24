"""Verdicts on a paper's claims: what each asks of the paired differences."""

from types import SimpleNamespace

import numpy as np
import pytest

from common.errors import ConfigError
from deploy.compare.figures import Row
from deploy.compare.findings import Upshot, findings_of, findings_table
from deploy.compare.grid import read_grid

FILE = """
reference = "random"
[settings]
num-server-rounds = 1
seed = "0..4"
[methods]
random = { strategy = "random" }
simclust = { strategy = "simclust", num-clusters = 2 }
[paper]
figures = [
    { method = "random", accuracy = 40.0 },
    { method = "simclust", accuracy = 50.0 },
]
claims = [
    { element = "table-9", says = "it is better", figure = "accuracy", methods = ["simclust"], %s },
]
"""


def grid_of(tmp_path, measure, figure="accuracy"):
    file = tmp_path / "paper.toml"
    file.write_text((FILE % measure).replace('figure = "accuracy"', f'figure = "{figure}"'))
    return read_grid(file)


def row(grid, method, accuracies):
    """A row as far as a claim reads it: a run a seed, with its last accuracy in per cent."""
    cases = [case for case in grid.cases if case.method == method]
    runs = [
        SimpleNamespace(
            case=case, curve=SimpleNamespace(accuracy=np.array([accuracy / 100])), cpu=""
        )
        for case, accuracy in zip(cases, accuracies, strict=False)
    ]
    return Row(method, "", tuple(runs), ())


@pytest.mark.parametrize(
    ("measure", "simclust", "standing"),
    [
        ('more-than = "random"', (51, 52, 53, 52, 51), Upshot.HELD),
        (
            'more-than = "random"',
            (44, 43, 44, 45, 44),
            Upshot.WEAKER,
        ),  # less than half of 10
        (
            'more-than = "random"',
            (60, 35, 65, 39, 70),
            Upshot.WEAKER,
        ),  # 0 is in the interval
        ('more-than = "random"', (39, 38, 39, 40, 41), Upshot.NOT_SEEN),
        ('less-than = "random"', (30, 29, 28, 30, 29), Upshot.HELD),
        ('less-than = "random"', (51, 52, 53, 52, 51), Upshot.NOT_SEEN),
        ('no-more-than = "random"', (60, 35, 65, 39, 70), Upshot.HELD),
        ('no-more-than = "random"', (51, 52, 53, 52, 51), Upshot.NOT_SEEN),
        ("printed = 50", (50, 50, 50, 50, 50), Upshot.HELD),
        ("printed = 50", (50, 52, 50, 52, 50), Upshot.NOT_SEEN),
        ('more-than = "random"', (51,), Upshot.OPEN),
        ('more-than = "random"', (), Upshot.OPEN),
    ],
)
def test_a_verdict_follows_from_the_pairs(measure, simclust, standing, tmp_path):
    grid = grid_of(tmp_path, measure)
    rows = [row(grid, "random", (40, 40, 41, 41, 42))]
    rows += [row(grid, "simclust", simclust)] if simclust else []
    [finding] = findings_of(rows, grid)
    assert finding.standing == standing
    if len(simclust) > 1 and "printed" not in measure:
        assert "(paper: +10)" in finding.reason
        assert "over 5 pairs of runs" in finding.reason


def test_claims_are_shown_with_their_element_alone(tmp_path):
    grid = grid_of(tmp_path, 'more-than = "random"')
    rows = [row(grid, "random", (40, 41))]
    assert findings_of(rows, grid, "table-8") == []
    [finding] = findings_of(rows, grid, "table-9")
    assert finding.reason == "no run of simclust is recorded"
    assert "| it is better | *open* | no run of simclust" in findings_table([finding])


def test_a_claim_has_one_measure(tmp_path):
    with pytest.raises(ConfigError, match="claim 'it is better': give one of more-than, less-than"):
        grid_of(tmp_path, 'more-than = "random", printed = 3')


def test_a_claim_of_an_unknown_figure_is_named(tmp_path):
    grid = grid_of(tmp_path, 'more-than = "random"', figure="acuracy")
    with pytest.raises(ConfigError, match=r"it is better.*unknown figure 'acuracy'.*accuracy"):
        findings_of([], grid)


def test_a_swept_method_is_its_best_row_by_the_claims_figure(tmp_path):
    file = tmp_path / "swept.toml"
    swept = FILE.replace("num-clusters = 2", "num-clusters = [2, 5, 10]")

    def finding(measure):
        file.write_text(swept % measure)
        grid = read_grid(file)
        rows = [
            row(grid, "random", (40, 40, 41, 41, 42)),
            row(grid, "simclust, num-clusters=2", (51, 52, 53, 52, 51)),
            row(grid, "simclust, num-clusters=5", (45, 45, 46, 46, 47)),
            row(grid, "simclust, num-clusters=10", (90,)),  # one lucky seed
        ]
        [found] = findings_of(rows, grid)
        return found

    found = finding('more-than = "random"')
    assert found.standing == Upshot.HELD
    assert "simclust, num-clusters=2 (best of 2) +11.0" in found.reason
    assert "(paper: +10)" in found.reason
    found = finding('less-than = "random"')
    assert found.standing == Upshot.NOT_SEEN
    assert "simclust, num-clusters=5 (best of 2) +5.0" in found.reason
