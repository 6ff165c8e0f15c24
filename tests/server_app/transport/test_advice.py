import re
from pathlib import Path

import pytest

from common.config import Settings
from common.errors import DataError
from server_app.transport.advice import BENEFICIAL, suggest

PAGE = Path(__file__).parents[3] / "docs" / "results" / "regularisation.md"
COSTS = [0.0, 0.1, 0.2, 0.25, 0.3, 0.5, 1.0]


@pytest.mark.parametrize("cost", COSTS)
def test_what_is_suggested_can_be_run_and_says_why(cost):
    suggestion = suggest(cost)
    settings = Settings.parse(suggestion.settings)
    assert settings.objective == suggestion.objective
    assert len(suggestion.reason) > 20


@pytest.mark.parametrize("cost", COSTS)
def test_every_figure_of_a_reason_stands_on_the_page_that_it_rests_on(cost):
    quoted = re.findall(r"[+-]\d+\.\d+", suggest(cost).reason)
    assert len(quoted) == 3
    page = PAGE.read_text(encoding="utf-8")
    assert [figure for figure in quoted if figure not in page] == []


def test_near_sites_share_a_model_and_others_have_their_own():
    assert suggest(BENEFICIAL).settings == {"objective": "fedavg"}
    far = suggest(BENEFICIAL + 1e-9)
    assert far.settings == {"objective": "ditto", "personal-lambda": 0.3}
    assert suggest(1.0) == far  # no relation of strength and cost was found


@pytest.mark.parametrize("cost", [-0.01, 1.01, float("nan")])
def test_a_cost_outside_its_range_is_refused(cost):
    with pytest.raises(DataError, match="between 0 and 1"):
        suggest(cost)
