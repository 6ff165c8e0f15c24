import pytest

from common.config import Settings
from common.errors import DataError
from server_app.advice import suggest


@pytest.mark.parametrize("cost", [0.0, 0.1, 0.2, 0.25, 0.3, 0.5, 1.0])
def test_what_is_suggested_can_be_run_and_says_why(cost):
    suggestion = suggest(cost)
    settings = Settings.parse(suggestion.settings)
    assert settings.objective == suggestion.objective
    assert len(suggestion.reason) > 20


@pytest.mark.parametrize("cost", [-0.01, 1.01, float("nan")])
def test_a_cost_outside_its_range_is_refused(cost):
    with pytest.raises(DataError, match="between 0 and 1"):
        suggest(cost)
