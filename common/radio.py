"""Air time and transmission energy of a model over IEEE 802.11ax, by calculation.

Pereira et al., "Energy-Efficient Federated Learning for AIoT using Clustering Methods", section
IV-B, after Bellalta and Wilhelmi: one frame with RTS/CTS and ACK over a legacy 20 MHz channel. The
authors' published code passes bytes where bits are meant and scales by 1e-9; the paper's own
formula, which this file follows, gives values larger by orders of magnitude.

Times are in microseconds and lengths in bits inside this file, seconds and joules at its border.
Nothing here is measured: a figure made from it is an estimate.
"""

from dataclasses import dataclass

from common.errors import ConfigError

_T_PHY = 20.0  # legacy preamble
_HE_SU_PREAMBLE = 100.0  # high-efficiency, single user
_SYMBOL = 4.0  # duration of a legacy OFDM symbol
_SIFS, _DIFS, _SLOT = 16.0, 34.0, 9.0
_SERVICE, _RTS, _CTS, _ACK, _MAC_HEADER = 16, 160, 112, 240, 320

_MILLIWATT = 1e-3


@dataclass(frozen=True)
class RadioProfile:
    """How a site is connected.

    Attributes:
        bits_per_symbol: of the legacy OFDM symbol that carries the frames; 24 is 6 Mbit/s.
        uplink_watts: transmission power of a site.
        downlink_watts: transmission power of the access point.
        bits_per_parameter: precision of the payload.
    """

    bits_per_symbol: float = 24.0
    uplink_watts: float = 7.943 * _MILLIWATT  # 9 dBm
    downlink_watts: float = 100.0 * _MILLIWATT  # 20 dBm
    bits_per_parameter: float = 32.0

    def __post_init__(self) -> None:
        """Refuse what no radio does."""
        for name in ("bits_per_symbol", "bits_per_parameter"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"radio profile: {name} = {getattr(self, name)}: must be above 0")
        for name in ("uplink_watts", "downlink_watts"):
            if not getattr(self, name) >= 0:
                raise ConfigError(
                    f"radio profile: {name} = {getattr(self, name)}: must be 0 or more"
                )


WIFI6 = RadioProfile()


def transmission_seconds(num_parameters: int, profile: RadioProfile = WIFI6) -> float:
    """Return the air time of one model in one direction, in seconds.

    The paper's formula: RTS, SIFS, DIFS, CTS, ACK, one slot, then the data frame.
    """
    if num_parameters < 0:
        raise ConfigError(f"num_parameters = {num_parameters}: must be 0 or more")
    payload = profile.bits_per_parameter * num_parameters

    def frame(bits: float) -> float:
        return bits * _SYMBOL / profile.bits_per_symbol

    microseconds = (
        (_T_PHY + frame(_SERVICE + _RTS))
        + _SIFS
        + _DIFS
        + (_T_PHY + frame(_SERVICE + _CTS))
        + (_T_PHY + frame(_SERVICE + _ACK))
        + _SLOT
        + _HE_SU_PREAMBLE
        + frame(_SERVICE + _MAC_HEADER + payload)
    )
    return microseconds * 1e-6


def transmission_joules(
    num_parameters: int, uplink: bool = True, profile: RadioProfile = WIFI6
) -> float:
    """Return the sender's energy for one model in one direction, in joules."""
    watts = profile.uplink_watts if uplink else profile.downlink_watts
    return watts * transmission_seconds(num_parameters, profile)
