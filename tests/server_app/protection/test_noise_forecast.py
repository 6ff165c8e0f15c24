"""Forecast of noise: against noise that is drawn, and what it says before a run."""

import logging
import math

import numpy as np
import pytest

from common.config import Settings
from server_app.protection.noise_forecast import NoiseForecast, say_noise

MODEL = {"w": np.zeros((30, 20), np.float32), "b": np.zeros(20, np.float32), "n": np.zeros(3, int)}


def settings(kind, epsilon=3.0, **more):
    words = {"update-privacy": kind, "update-epsilon": epsilon, "strategy": "fedavg"}
    return Settings.parse(words | {"clip-norm": 2.0, "num-server-rounds": 9, **more})


@pytest.mark.parametrize(("kind", "power"), [("local-dp", 0.5), ("central-dp", 1.0)])
def test_noise_is_as_long_as_drawn_noise_on_an_average(kind, power):
    from common.privacy.updates import UpdateNoise

    plan = settings(kind)
    sigma = UpdateNoise.of(plan).sigma
    drawn = np.random.default_rng(0).normal(0, sigma, (200, 620)) / 4**power
    found = NoiseForecast.of(plan, MODEL, 4)
    assert found.noise == pytest.approx(np.linalg.norm(drawn, axis=1).mean(), rel=0.02)
    assert found.over_rounds == pytest.approx(found.noise / (math.sqrt(9) * 2.0))
    again = NoiseForecast.of(plan, MODEL, found.sites_needed)
    assert again.over_rounds <= 1
    fewer = NoiseForecast.of(plan, MODEL, found.sites_needed - 1)
    assert fewer.over_rounds > 1


def test_a_run_without_noise_has_no_forecast():
    assert NoiseForecast.of(Settings.parse({}), MODEL, 4) is None


def test_only_noise_that_cannot_work_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING, logger="coterie"):
        say_noise(settings("central-dp"), MODEL, np.full(4, 50))
        assert "expect a loss no lower than that of guessing" in caplog.text
        caplog.clear()
        say_noise(settings("central-dp", epsilon=1000.0), MODEL, np.full(200, 50))
    assert caplog.text == ""
