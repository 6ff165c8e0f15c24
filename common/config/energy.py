"""Settings of the meters: what joules are measured, and what sending costs."""

from typing import Literal

from pydantic import Field

from common.schema import Schema


class EnergySettings(Schema):
    """What joules are measured, and what sending costs."""

    energy: Literal["off", "codecarbon"] = Field(
        "off", description="codecarbon: meter the machines that train and the server's"
    )
    energy_country: str = Field(
        "",
        pattern=r"^([A-Z]{3})?$",
        description="ISO code of three letters, as DEU, for kg CO2e; empty: joules alone",
    )
    radio_profile: str = Field(
        "wifi6", min_length=1, description="wifi6, wired, or a .toml file: what sending costs"
    )
    link_rate: str = Field(
        "",
        description="simulated sites' links in Mbit/s: a rate, a range to draw from as 6-54, or "
        "empty for the radio profile's",
    )
