"""FLIS: Morafah et al., groups of models that decide alike."""

from collections.abc import Mapping
from dataclasses import replace

from common.config import Settings
from server_app.clustering import by_models
from server_app.clustering.by_models import FlisSettings, ProbeSettings
from server_app.methods.method import Card, Composition, Method, model_per_cluster
from server_app.selection.rules import OnePerCluster


def flis(settings: Settings) -> Method:
    """Groups of equal predictions, formed anew every round, one client of each: Morafah et al."""
    method = model_per_cluster(by_models.by_predictions(settings), settings)
    return method if settings.clients_per_round else replace(method, select=OnePerCluster())


FLIS = Composition(
    flis,
    card=Card(
        paper="Morafah et al.",
        source=(
            "Morafah, Vahidian, Wang, Lin, “FLIS: Clustered Federated Learning via Inference "
            "Similarity for Non-IID Data Distribution”"
        ),
        trains="everybody in round 1, then one of every group",
        sees="models of single sites, their update",
        rule=(
            "Everybody trains in round 1. In every round the models that come back predict the "
            "classes of probe rows; groups merge (average linkage) while the share of equal "
            "predictions is at least flis-threshold. Each group has a model, and one site of each "
            "trains next. A site that did not train is described by the last model it returned."
        ),
        assumes="Sites of a kind decide alike on the probe: a public file shows more than noise.",
        costs="In round 1 everybody's training; per round a forward pass of the probe per update.",
        settings=(
            "flis-threshold",
            "recluster-every",
            "selection",
            "clients-per-round",
            "cka-probe",
            "cka-probe-size",
            "probe-file",
        ),
        example="flis-threshold=0.7",
    ),
    settings=(
        FlisSettings,
        ProbeSettings,
    ),
)


METHODS: Mapping[str, Composition] = {"flis": FLIS}
