"""Settings of the training on a site: network, steps and objective."""

from typing import Literal, Self

from pydantic import Field, model_validator

from common.schema import Schema, kebab_case


class TrainingSettings(Schema):
    """What a site minimises, and how."""

    model: Literal[
        "auto",
        "lenet",
        "mlp",
        "fama-cnn",
        "fama-cnn-small",
        "pereira-mlp",
        "pereira-cnn",
        "resnet18",
        "unet3d",
    ] = Field(
        "auto",
        description="network; auto: lenet for images, unet3d for volumes, mlp for rows of features",
    )
    batch_size: int = Field(16, ge=1, description="rows per SGD step")
    local_epochs: int = Field(5, ge=1, description="passes over a site's rows per round")
    learning_rate: float = Field(0.05, gt=0, description="of SGD")
    momentum: float = Field(0.5, ge=0, lt=1, description="of SGD")
    weight_decay: float = Field(0.0, ge=0, description="of SGD (L2)")
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="auto, cpu, cuda or cuda:<index>",
    )

    objective: Literal["fedavg", "fedprox", "ditto", "pfedme", "local"] = Field(
        "fedavg",
        description="what a site minimises; ditto, pfedme: a personal model beside the common one; "
        "local: nothing is shared",
    )
    proximal_mu: float = Field(0.01, ge=0, description="fedprox: strength of mu/2 ||w - w_t||^2")
    personal_lambda: float = Field(
        1.0, gt=0, description="ditto, pfedme: strength of lambda/2 ||personal - common||^2"
    )
    pfedme_steps: int = Field(5, ge=1, description="pfedme: SGD steps on each batch (K)")
    pfedme_beta: float = Field(
        1.0, gt=0, le=10, description="pfedme: share of the way to the average the server goes"
    )

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        """Refuse strengths that the objective does not use, or cannot."""
        for key, users in _STRENGTHS.items():
            value = getattr(self, key)
            if self.objective not in users and value != type(self).model_fields[key].default:
                raise ValueError(
                    f"{kebab_case(key)} = {value}: objective = {self.objective} does not use it; "
                    f"leave it out, or set objective={' or '.join(users)}"
                )
        rate = self.learning_rate * self.personal_lambda
        if self.objective == "pfedme" and rate > 1:
            raise ValueError(
                f"personal-lambda = {self.personal_lambda}: times learning-rate = "
                f"{self.learning_rate} it must be at most 1, or pfedme's model overshoots the "
                "personal one; lower either"
            )
        return self

    @property
    def is_personal(self) -> bool:
        """Whether sites keep models of their own, which are then what a site uses."""
        return self.objective in ("ditto", "pfedme", "local")

    @property
    def shares_model(self) -> bool:
        """Whether there is a model that sites train together."""
        return self.objective != "local"


_STRENGTHS = {
    "proximal_mu": ("fedprox",),
    "personal_lambda": ("ditto", "pfedme"),
    "pfedme_steps": ("pfedme",),
    "pfedme_beta": ("pfedme",),
}
"""Settings of local objectives, and which objectives use them."""
