"""Finished models: to load one, and to find the one that a new site fits."""

import tomllib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from torch import nn

from common import models
from common.config import Settings
from common.errors import DataError, MessageError
from common.messages import Parameters, Template, check_arrays
from server_app.clustering.by_models import nearest_columns
from server_app.clustering.probe import Prober, ProbeRows
from server_app.dissimilarity import FloatArray, linear_cka
from server_app.record.format import SiteEntry
from server_app.record.run_folder import RunFolder

__all__ = ["Assignment", "assign", "load_network", "read_model"]


@dataclass(frozen=True)
class Assignment:
    """The cluster that a new site fits best, and how well."""

    cluster: int
    model: Path
    """The cluster's model."""
    similarities: FloatArray
    """(k,) mean CKA of the new site's model with the models of each cluster, in [0, 1]."""


def load_network(run: Path, model: int) -> nn.Module:
    """Return the network of a run's final model, ready to predict: logits for rows (n, ...).

    Args:
        run: the run's folder.
        model: the cluster whose model it is; 0 where there is one model for all.
    """
    network = _network(run)
    of_cluster = _cluster_model(run, model)
    shared = run / "models" / f"model-{model}.safetensors"
    models.load_parameters(network, read_model(of_cluster if of_cluster.exists() else shared))
    return network.eval()


def _cluster_model(run: Path, cluster: int) -> Path:
    return run / "models" / f"cluster-{cluster}.safetensors"


def read_model(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file; :class:`DataError` if it is none."""
    try:
        return dict(load_file(path))
    except Exception as error:  # safetensors raises a class of its own, and OSError
        raise DataError(f"{path} is no safetensors file with a model: {error}") from None


def assign(run: Path, parameters: Parameters) -> Assignment:
    """Return where a site belongs that was not there when a run's clusters were formed.

    The site is described as the others were: by its own model on the run's probe rows. Its column
    of CKA with every site's model is compared with the columns of each cluster (Talasso eq. 6).

    Args:
        run: folder of a run of strategy=fedsccs whose probe rows were kept.
        parameters: ``models/shared.safetensors`` after one local pass on the new site.

    Raises:
        DataError: the run kept no activations or rows, or the model is not of its architecture.
    """
    archive = _arrays(run / "probe.npz", "activations", "rows", "layer")
    labels = _arrays(run / "dissimilarity.npz", "labels")["labels"]
    activations = archive["activations"]
    if activations.ndim != 3:
        raise DataError(
            f"{run.name} compared predictions, not activations: a new site is assigned to the "
            "clusters of strategy=fedsccs"
        )
    network = _network(run)
    _check(parameters, network)
    prober = Prober(network, str(archive["layer"]), ProbeRows(archive["rows"], "public"))
    everybody = np.concatenate([activations, prober.activations(parameters)[None]])
    similarity = linear_cka(everybody)
    cluster = nearest_columns(similarity, labels)
    means = [similarity[-1, :-1][labels == k].mean() for k in range(labels.max() + 1)]
    return Assignment(cluster, _cluster_model(run, cluster), np.array(means))


def _network(run: Path) -> nn.Module:
    try:
        settings = Settings.parse(tomllib.loads((run / "config.toml").read_text(encoding="utf-8")))
        site = RunFolder(run).sites()[0]
        if site.num_classes is None:
            raise ValueError(f"{SiteEntry.FILE} says no num_classes")
    except (OSError, ValueError, LookupError) as error:
        raise DataError(f"{run} is no run's folder: {error}") from None
    return models.blank(settings.model, site.input_shape, site.num_classes)


def _check(parameters: Parameters, network: nn.Module) -> None:
    try:
        check_arrays(parameters, Template.of(models.parameters_of(network)))
    except MessageError as error:
        raise DataError(
            f"the new site's model {error}; train the run's models/shared.safetensors"
        ) from None


def _arrays(path: Path, *names: str) -> dict[str, Any]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}: {error}; a new site can be assigned where strategy=fedsccs has formed its "
            "clusters, unless its probe was rows of the sites, which are not kept"
        ) from None
