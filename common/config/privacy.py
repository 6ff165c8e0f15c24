"""Settings of the protections: what leaves a site with noise, as a sum, or not at all."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from common.schema import KeyOf, Schema


class PrivacySettings(Schema):
    """What leaves a site with noise, as a sum, or not at all."""

    label_privacy: Annotated[str, KeyOf("common.privacy.labels:LABEL_PRIVACY")] = Field(
        "none",
        description="label histograms: as they are, with discrete Gaussian noise, with randomised "
        "labels, with the paper's noise, or not at all (distances by two-party computation)",
    )
    epsilon: float = Field(
        1.0, gt=0, le=1000, description="label-privacy=gaussian, k-rr, two-party: of a histogram"
    )
    delta: float = Field(
        1e-5, gt=0, le=0.01, description="of every noise that is not pure; below 1 / rows"
    )
    label_gamma: float = Field(
        1.0, gt=0, description="label-privacy=paper: noise of gamma / classes on shares"
    )
    statistics_privacy: Literal["none", "zcdp"] = Field(
        "none",
        description="class statistics of the OT cost: as they are, or with concentrated privacy",
    )
    rho: float = Field(
        1.0, gt=0, le=1000, description="statistics-privacy=zcdp: of all classes together, once"
    )
    secagg: bool = Field(False, description="sites mask updates, the server reads their sums only")
    secagg_min_cohort: int = Field(3, ge=3, description="fewest sites in such a sum")
    secagg_range: float = Field(
        4.0,
        ge=1,
        allow_inf_nan=False,
        description="how far one training may move an entry of a model that is summed; a site "
        "whose update goes further adds nothing. update-privacy=local-dp: follows from clip-norm",
    )
    secagg_fraction_bits: int = Field(
        20, ge=10, le=40, description="entries of such a sum are in steps of 2^-bits of the mean"
    )
    two_party: bool = Field(
        False,
        description="ot-groups: no row leaves a site; every two multiply theirs together, and "
        "class statistics do the rest",
    )
    reveal: Literal["products", "cost"] = Field(
        "products",
        description="two-party: what the server reads of two sites: cosines between their rows, or "
        "the cost alone, which a third site works out",
    )
    update_privacy: Annotated[str, KeyOf("common.privacy.update_privacy:UPDATE_PRIVACY")] = Field(
        "none",
        description="updates: averaged as they are, averaged with noise by the server, made noisy "
        "by each site, or trained by steps that hide each row",
    )
    update_epsilon: float = Field(
        8.0,
        gt=0,
        le=1000,
        description="update-privacy=central-dp, local-dp: of all rounds together, for a whole "
        "site; local-dp: of all runs of that model",
    )
    clip_norm: float = Field(
        1.0,
        gt=0,
        description="update-privacy=central-dp, local-dp: largest length (L2) of an update; longer "
        "ones shrink",
    )

    @model_validator(mode="after")
    def _check_reveal(self) -> Self:
        if self.reveal == "cost" and not self.two_party:
            raise ValueError("reveal = cost: that is for two-party=true; set it, or leave it out")
        return self
