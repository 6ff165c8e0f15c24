"""Settings of the cohorts: who belongs together, who trains, and with which model."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from common.schema import KeyOf, Schema, at_most


class CohortSettings(Schema):
    """Who trains, and with which model."""

    strategy: str = Field(
        "balanced-cohort", description="a method of the catalogue: coterie methods"
    )
    metric: str = Field("euclidean", description="label dissimilarity of strategy=similarity")
    num_clusters: int = Field(0, ge=0, description="0: the method chooses")
    max_clusters: int = Field(0, ge=0, description="largest number tried; 0: no bound")
    clients_per_round: int = Field(
        0,
        ge=0,
        description="0: one per cluster, balanced-cohort a quarter of the sites, and everybody "
        "where nothing is chosen by",
    )
    routing: Annotated[str, KeyOf("server_app.rounds.routing:ROUTINGS", besides=("auto",))] = Field(
        "auto",
        description="which model a site gets; auto: the method's own, one for all where clusters "
        "of labels say who trains, one for each of the others'",
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
    recluster_every: int = Field(
        0, ge=0, description="rounds between groupings; 0: once, or as often as the method says"
    )

    @model_validator(mode="after")
    def _check_clusters(self) -> Self:
        if self.max_clusters == 1:
            raise ValueError("max-clusters = 1: one cluster groups nobody; use 2 or more, or 0")
        if self.max_clusters and self.num_clusters:
            at_most("num_clusters", self.num_clusters, "max-clusters", self.max_clusters)
        return self
