"""Settings of the rounds: how many, how their models are judged, and when a run ends or goes on."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from common.schema import KeyOf, Listed, NotSet, Schema


class JudgingSettings(Schema):
    """How many rounds there are, what is learnt, and what judges it: sites must know it, too."""

    num_server_rounds: int = Field(20, ge=1, description="rounds of training")
    task: Annotated[str, KeyOf("common.tasks:TASKS", besides=("auto",))] = Field(
        "auto",
        description="what is learnt: the classes of a label, the quantity that it is, how soon its "
        "event comes, masks, or package.module:NAME; auto: what the data set or its schema says; "
        "real sites must be told",
    )
    metrics: Annotated[
        str, KeyOf("common.tasks.metrics:TASK_METRICS", besides=("auto",), several=True), Listed()
    ] = Field(
        "auto",
        description="of the task on held-out rows, beside its score, which every run has; several "
        "with commas between, package.module:name among them; auto: mse and mae of "
        "task=regression, none of others",
    )
    bootstrap_resamples: int = Field(
        0,
        ge=0,
        le=10_000,
        description="after the last round: resamples of each site's held-out rows, or groups of "
        "them, for 95 % intervals of its figures; 0: none",
    )
    decision_threshold: Literal["none", "site", "common"] = Field(
        "none",
        description="of two classes: each site's own probability, or one for all sites of a model, "
        "from which on a row is said to be of the second; chosen on training rows",
    )
    target_metric: str = Field(
        "auto",
        description="one of metrics: target-accuracy is of it, and so is the best model; auto: the "
        "task's score",
    )

    @property
    def ends_with_evaluation(self) -> bool:
        """Whether sites tell more of their held-out rows after the last round."""
        return self.bootstrap_resamples > 0 or self.decision_threshold != "none"


class RoundSettings(JudgingSettings):
    """What ends a round, and a run."""

    target_accuracy: Annotated[float | None, NotSet(0)] = Field(
        None, gt=0, le=1, description="whose rounds and joules are reported; left out: none"
    )
    sustained_rounds: int = Field(
        3, ge=1, description="consecutive rounds that hold the target accuracy"
    )
    stop_at_target: bool = Field(False, description="end the run once the target was held")
    patience: Annotated[int | None, NotSet(0)] = Field(
        None,
        ge=1,
        description="rounds without a lower held-out loss that end the run; left out: none do",
    )
    round_timeout: float = Field(3600, gt=0, description="seconds to wait for a round's replies")
    deadline_factor: Annotated[float | None, NotSet(0)] = Field(
        None,
        gt=0,
        description="wait this many times the median of past exchanges; left out: round-timeout "
        "alone",
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
    def may_end_early(self) -> str:
        """The setting by which a run may end before its last round, as ``patience = 3``; or none.

        What comes after the last round must then be left out: it is not known beforehand.
        """
        if self.stop_at_target:
            return "stop-at-target = True"
        return f"patience = {self.patience}" if self.patience else ""

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        if self.stop_at_target and not self.target_accuracy:
            raise ValueError("stop-at-target = True: set target-accuracy")
        if self.may_end_early and self.ends_with_evaluation:
            raise ValueError(
                f"{self.may_end_early} with bootstrap-resamples or decision-threshold: what they "
                "ask for comes after the last round, which must be known; leave one of them out"
            )
        return self
