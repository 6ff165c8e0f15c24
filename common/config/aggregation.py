"""Settings of the aggregation: how the updates of a round become a model."""

from typing import Annotated

from pydantic import Field, field_validator

from common.schema import KeyOf, Schema


class AggregationSettings(Schema):
    """What the server makes of the updates."""

    aggregation: Annotated[str, KeyOf("server_app.aggregation.rules:AGGREGATIONS")] = Field(
        "mean", description="how a model's updates become one; all but mean see every update"
    )
    clip_updates: str = Field(
        "0",
        pattern=r"^(median|\d+(\.\d+)?(e[+-]?\d+)?)$",
        description="length that longer updates are shortened to: a number, or median for the "
        "median of the round's; 0: none is",
    )
    server_optimizer: Annotated[
        str,
        KeyOf("server_app.aggregation.server_optimizers:SERVER_OPTIMIZERS", besides=("none",)),
    ] = Field("none", description="the server's step with a round's average; none: takes it")

    @field_validator("clip_updates", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        return str(value) if isinstance(value, int | float) else value
