"""Settings of the cohorts: who belongs together, who trains, and with which model."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from common.schema import KeyOf, Schema, at_most


class CohortSettings(Schema):
    """Who trains, and with which model."""

    strategy: str = Field("similarity", description="a method of the catalogue: coterie methods")
    metric: str = Field("euclidean", description="label dissimilarity of strategy=similarity")
    num_clusters: int = Field(0, ge=0, description="0: the method chooses")
    max_clusters: int = Field(0, ge=0, description="largest number tried; 0: no bound")
    clients_per_round: int = Field(
        0, ge=0, description="0: one per cluster, or everybody where there are no clusters"
    )
    routing: Annotated[str, KeyOf("server_app.rounds.routing:ROUTINGS")] = Field(
        "one-model",
        description="label clusters: which model a site gets; model clusters have one each",
    )
    selection: Annotated[
        str, KeyOf("server_app.selection.in_clusters:IN_CLUSTERS", besides=("auto",))
    ] = Field(
        "auto",
        description="inside clusters: all, one at random, the half of lowest accuracy, or one at "
        "random with cheaper uploads preferred; auto: the method's own rule",
    )
    cluster_at_round: int = Field(
        10, ge=1, description="model clusters: the round whose models decide"
    )
    recluster_every: int = Field(0, ge=0, description="rounds between groupings; 0: group once")
    cka_layer: str = Field(
        "probabilities",
        min_length=1,
        description="fedsccs: layer compared; probabilities, or a child of the network",
    )
    cka_probe: Literal["auto", "public", "noise", "client-rows"] = Field(
        "auto",
        description="rows on which models are compared; auto: probe-file if given, else noise; "
        "client-rows discloses rows of every site",
    )
    cka_probe_size: int = Field(
        100, ge=2, le=100_000, description="probe rows; client-rows: of each site"
    )
    probe_file: str = Field("", description="cka-probe=public: .npz with X, standardised rows")
    flis_threshold: float = Field(
        0.8, gt=0, le=1, description="flis: share of equal predictions inside a group"
    )
    ot_variant: str = Field(
        "paper", description="ot-groups: reading of the OT cost: paper, full-covariance or authors"
    )
    ot_feature_weight: float = Field(
        -1, ge=-1, description="ot-groups: weight of the feature cost; -1: the variant's own"
    )
    ot_label_weight: float = Field(
        -1, ge=-1, description="ot-groups: weight of the label cost; -1: the variant's own"
    )
    ot_beneficial: float = Field(
        0, ge=0, le=1, description="ot-groups: cost up to which data fit; 0: the variant's own"
    )
    ot_detrimental: float = Field(
        0, ge=0, le=1, description="ot-groups: cost from which they do not; 0: the variant's own"
    )
    min_rows: int = Field(
        20, ge=2, description="ot-groups: rows of a class that a site needs for it to be compared"
    )
    normalise: Literal["client", "class"] = Field(
        "client", description="simclust, repclust: label counts per site, or first per class"
    )
    power_of_choice_candidates: int = Field(
        30, ge=1, description="power-of-choice: sites asked for their loss in a round"
    )
    delta_mode: Literal["practical", "full"] = Field(
        "practical", description="delta: updates of those who trained, or of everybody each round"
    )
    fedcor_warmup: int = Field(
        10, ge=1, description="fedcor: first rounds, drawn at random, in which all report losses"
    )
    fedcor_interval: int = Field(
        10, ge=1, description="fedcor: rounds between two trainings of its Gaussian process"
    )

    @model_validator(mode="after")
    def _check_clusters(self) -> Self:
        if self.max_clusters == 1:
            raise ValueError("max-clusters = 1: one cluster groups nobody; use 2 or more, or 0")
        if self.max_clusters and self.num_clusters:
            at_most("num_clusters", self.num_clusters, "max-clusters", self.max_clusters)
        return self

    @model_validator(mode="after")
    def _check_probe(self) -> Self:
        if self.cka_probe == "public" and not self.probe_file:
            raise ValueError("cka-probe = public: name the file of rows with probe-file")
        if self.probe_file and self.cka_probe in ("noise", "client-rows"):
            raise ValueError(f"probe-file and cka-probe = {self.cka_probe}: leave one of them out")
        return self
