"""Settings of the rounds: how many, how long they wait, and when a run ends or goes on."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from common.schema import KeyOf, Schema


class RoundSettings(Schema):
    """How many rounds there are, and what ends one."""

    num_server_rounds: int = Field(20, ge=1, description="rounds of training")
    task: Literal["auto", "classification", "regression"] = Field(
        "auto",
        description="what is learnt of a label: its classes, or the quantity that it is; auto: "
        "what the data set or its schema says; real sites must be told of quantities",
    )
    metrics: Annotated[str, KeyOf("common.task_metrics:TASK_METRICS", several=True)] = Field(
        "accuracy",
        description="of the task on held-out rows; several with commas between, "
        "package.module:name among them; task=regression: mse and mae unless others are named",
    )
    target_metric: str = Field(
        "accuracy", description="one of metrics: target-accuracy is of it, and so is the best model"
    )
    target_accuracy: float = Field(
        0.0, ge=0, le=1, description="whose rounds and joules are reported; 0: none"
    )
    sustained_rounds: int = Field(
        3, ge=1, description="consecutive rounds that hold the target accuracy"
    )
    stop_at_target: bool = Field(False, description="end the run once the target was held")
    round_timeout: float = Field(3600, gt=0, description="seconds to wait for a round's replies")
    deadline_factor: float = Field(
        0,
        ge=0,
        description="wait this many times the median of past exchanges; 0: round-timeout alone",
    )
    quorum: float = Field(
        0, ge=0, le=1, description="share of the cohort whose updates a round needs; 0: one update"
    )
    on_bad_update: Literal["drop", "fail"] = Field(
        "drop", description="what an unusable reply does: leave it out, or stop the run"
    )
    max_update_norm: float = Field(
        100,
        ge=0,
        description="times the median norm of this and past updates that an update may have, and "
        "1e6 at most; 0: any",
    )
    checkpoint_every: int = Field(
        1, ge=0, description="rounds between checkpoints; 0: none, and no coterie resume"
    )
    resume: str = Field(
        "", description="run folder to go on with, under its own settings; see coterie resume"
    )

    @property
    def more_metrics(self) -> tuple[str, ...]:
        """The metrics beside accuracy, which every run has."""
        names = (word.strip() for word in self.metrics.split(","))
        named = tuple(name for name in names if name != "accuracy")
        return named or (("mse", "mae") if self.task == "regression" else ())

    def num_outputs(self, num_classes: int) -> int:
        """Return how many numbers the run's network says of a row."""
        return 1 if self.task == "regression" else num_classes

    @model_validator(mode="after")
    def _check_metrics(self) -> Self:
        names = self.more_metrics
        if len(set(names)) < len(names):
            raise ValueError(f"metrics = {self.metrics!r}: name each once")
        if self.target_metric not in ("accuracy", *names):
            raise ValueError(
                f"target-metric = {self.target_metric!r}: must be one of metrics = {self.metrics!r}"
            )
        return self

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        if self.stop_at_target and not self.target_accuracy:
            raise ValueError("stop-at-target = True: set target-accuracy, which is 0 (none)")
        return self
