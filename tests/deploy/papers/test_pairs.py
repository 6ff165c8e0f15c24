"""Pairs: what a line's numbers depend on is in its key, and images come from a seed."""

import numpy as np
import pytest

from common.errors import ConfigError
from deploy.papers import pairs
from deploy.papers.pairs import PAPER_TRAINING, PLAIN, Results, Scenario

FEATURE = Scenario("feature", 0.6, 0)


def test_lines_of_another_training_are_not_taken_for_these(tmp_path, monkeypatch):
    monkeypatch.setitem(pairs.COMMON, "num-server-rounds", 2)
    short = Results(tmp_path, None, minutes=10)
    line = short.run(FEATURE, PLAIN[0])
    assert len(line["divergences"]) == 2
    assert line["divergence"] == np.mean(line["divergences"])
    assert Results(tmp_path, None, minutes=0).run(FEATURE, PLAIN[0]) == line
    assert (
        Results(tmp_path, None, minutes=0, training=PAPER_TRAINING).run(FEATURE, PLAIN[0]) is None
    )


def test_images_need_their_data(tmp_path):
    with pytest.raises(ConfigError, match="mnist's files: give --data-dir"):
        Results(tmp_path, None, minutes=10).cost(Scenario("rotation", 0.2, 0))
