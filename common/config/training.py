"""Settings of the training on a site: network, steps and objective."""

from typing import Annotated

from pydantic import Field

from common.schema import KeyOf, NotSet, Schema


class TrainingSettings(Schema):
    """What a site minimises, and how."""

    model: Annotated[str, KeyOf("common.networks:NETWORKS", besides=("auto",))] = Field(
        "auto",
        description="network; auto: lenet for images, unet3d for volumes, mlp for rows of features "
        "and windows; glm, trees: of tables, fitted from sums over rows and so equal to a fit on "
        "all of them; or package.module:name",
    )
    batch_size: int = Field(16, ge=1, description="rows per SGD step; task=survival: all of a site")
    local_epochs: int = Field(5, ge=1, description="passes over a site's rows per round")
    local_steps: Annotated[int | None, NotSet(0)] = Field(
        None,
        ge=1,
        description="SGD steps per round at every site; left out: what local-epochs makes",
    )
    loss: Annotated[str, KeyOf("client_app.training.losses:LOSSES")] = Field(
        "auto",
        description="that the steps make small; auto: cross-entropy, of quantities the squared "
        "error, of survival Cox's, of masks Dice's; focal: rows that are told badly count more; or "
        "package.module:name",
    )
    optimizer: Annotated[str, KeyOf("client_app.training.optimizers:OPTIMIZERS")] = Field(
        "sgd",
        description="of the sites' steps; its memory begins anew in every round; or "
        "package.module:name, as torch.optim:RMSprop",
    )
    learning_rate: float = Field(0.05, gt=0, description="of the sites' steps")
    schedule: Annotated[str, KeyOf("client_app.training.schedules:SCHEDULES")] = Field(
        "constant",
        description="of the learning rate over the rounds; cosine: towards 0, step: a tenth from "
        "half of the rounds on, a hundredth from three quarters; or package.module:name",
    )
    weight_decay: float = Field(0.0, ge=0, description="of the sites' steps (L2; adamw: its own)")
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="auto, cpu, cuda or cuda:<index>",
    )

    objective: Annotated[str, KeyOf("common.objectives:OBJECTIVES")] = Field(
        "fedavg",
        description="what a site minimises; ditto, pfedme: a personal model beside the common one; "
        "local: nothing is shared; fedper, lg-fedavg, fedrep, fedbabu, fedbn: part of a model is; "
        "scaffold, feddyn: a common model without drift",
    )
    fine_tune_epochs: Annotated[int | None, NotSet(-1)] = Field(
        None,
        ge=0,
        description="passes over a site's rows after the last round, from the model it uses; left "
        "out: what the objective asks for, 10 with fedbabu, else none",
    )
