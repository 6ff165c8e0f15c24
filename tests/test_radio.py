import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigError
from common.radio import RadioProfile, transmission_joules, transmission_seconds


def test_empty_frame_by_hand():
    # at 6 bits per microsecond: RTS 176 -> 29.33, CTS 128 -> 21.33, ACK 256 -> 42.67, 336 -> 56
    microseconds = (20 + 29.3333) + 16 + 34 + (20 + 21.3333) + (20 + 42.6667) + 9 + 100 + 56
    assert transmission_seconds(0) == pytest.approx(microseconds * 1e-6, rel=1e-6)


def test_pereiras_network_takes_what_its_formula_gives():
    assert transmission_seconds(73_418) == pytest.approx(0.3919, abs=5e-5)
    up, down = transmission_joules(73_418), transmission_joules(73_418, uplink=False)
    assert up == pytest.approx(0.3919 * 7.943e-3, rel=1e-3)
    assert down == pytest.approx(0.03919, rel=1e-3)
    assert up + down == pytest.approx(0.0423, abs=5e-5)


@given(st.integers(0, 10**8), st.integers(1, 10**6))
def test_every_further_parameter_costs_its_bits(parameters, more):
    difference = transmission_seconds(parameters + more) - transmission_seconds(parameters)
    assert difference == pytest.approx(more * 32 / 6e6, rel=1e-6, abs=1e-9)


def test_profile_scales_rate_power_and_precision():
    fast = RadioProfile(bits_per_symbol=240.0)
    payload = transmission_seconds(10**6, fast) - transmission_seconds(0, fast)
    assert payload == pytest.approx(3.2e7 / 6e7)
    half = RadioProfile(bits_per_parameter=16.0)
    assert transmission_seconds(2_000, half) == pytest.approx(transmission_seconds(1_000))
    wired = RadioProfile(uplink_watts=0.0, downlink_watts=0.0)
    assert transmission_joules(10**6, profile=wired) == 0.0


@pytest.mark.parametrize(
    "values", [{"bits_per_symbol": 0}, {"uplink_watts": -1}, {"bits_per_parameter": -1}]
)
def test_impossible_radios_are_refused(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        RadioProfile(**values)
    with pytest.raises(ConfigError, match="num_parameters"):
        transmission_seconds(-1)
