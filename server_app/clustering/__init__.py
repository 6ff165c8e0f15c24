"""Clustering: who belongs together, groups of sites and what groups them."""

from server_app.clustering.algorithms import (
    k_center,
    k_medoids,
    k_medoids_by_silhouette,
    symmetric_kl_k_means,
    ward,
)
from server_app.clustering.clusters import Clusters
from server_app.clustering.repulsion import diversity, repulsive

__all__ = [
    "Clusters",
    "diversity",
    "k_center",
    "k_medoids",
    "k_medoids_by_silhouette",
    "repulsive",
    "symmetric_kl_k_means",
    "ward",
]
