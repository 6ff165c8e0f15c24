import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigError
from common.radio import (
    WIFI6,
    WIRED,
    LinkRates,
    RadioProfile,
    profile_of,
    transmission_joules,
    transmission_seconds,
)


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


def test_a_wire_takes_no_air_time_and_no_joules():
    assert transmission_seconds(10**6, WIRED) == transmission_joules(10**6, profile=WIRED) == 0.0


def test_rates_by_hand():
    # 9 times the 6 Mbit/s of the profile: frames take a ninth, preambles and gaps stay
    fixed = (20 + 16 + 34 + 20 + 20 + 9 + 100) * 1e-6
    slow, fast = transmission_seconds(1_000), transmission_seconds(1_000, WIFI6.at_rate(54))
    assert fast - fixed == pytest.approx((slow - fixed) / 9)
    assert WIFI6.at_rate(6) == WIFI6.at_rate(0) == WIFI6


def test_profiles_by_name_and_from_a_file(tmp_path):
    assert profile_of("wifi6") is WIFI6
    assert profile_of("wired") is WIRED
    file = tmp_path / "lora.toml"
    file.write_text("bits_per_symbol = 0.02\nuplink_watts = 0.025\n")
    assert profile_of(str(file)) == RadioProfile(bits_per_symbol=0.02, uplink_watts=0.025)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("bits_per_symbl = 24", "unknown key 'bits_per_symbl'; did you mean 'bits_per_symbol'"),
        ("uplink_watts = '9 dBm'", "must be a number"),
        ("uplink_watts = true", "must be a number"),
        ("uplink_watts = -1", "must be 0 or more"),
        ("uplink_watts", "is not a TOML file"),
    ],
)
def test_bad_profile_files_are_refused(tmp_path, text, problem):
    file = tmp_path / "own.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        profile_of(str(file))


def test_unknown_profiles_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'wifi6'"):
        profile_of("wifi")
    with pytest.raises(ConfigError, match="cannot read"):
        profile_of(str(tmp_path / "none.toml"))


def test_links_are_drawn_from_their_range_evenly_by_factors():
    rng = np.random.default_rng(0)
    rates = np.array([LinkRates.parse("6-54").draw(rng) for _ in range(4000)])
    assert 6 <= rates.min() < 6.1
    assert 53 < rates.max() <= 54
    assert np.median(rates) == pytest.approx(18, rel=0.05)
    assert LinkRates.parse("12").draw(rng) == pytest.approx(12)


@pytest.mark.parametrize("text", ["", "fast", "54-6", "0-6", "-6", "6-inf", "6-54-108"])
def test_impossible_link_rates_are_refused(text):
    with pytest.raises(ConfigError, match="link-rate"):
        LinkRates.parse(text)


def test_a_profile_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "radio.toml"
    path.write_text("uplink_watts = 0.25\n", encoding="utf-8-sig")
    assert profile_of(str(path)).uplink_watts == 0.25
