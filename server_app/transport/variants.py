"""Variants of the OT cost: the readings of Elhussein's metric, and what else can be set.

Source: "A Universal Metric of Dataset Similarity for Cross-silo Federated Learning" (Elhussein,
Gürsoy), and the authors' published code where the variant ``authors`` follows it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.errors import ConfigError, did_you_mean
from common.privacy.statistics import NoisyMoments
from common.transport_plan import SOLVERS, Solver
from server_app.dissimilarity import FloatArray
from server_app.transport.gaussians import (
    Gaussian,
    authors_label_cost,
    fit_gaussian,
    hellinger_distance,
    projected_into_ball,
    public_projection,
)
from server_app.transport.noisy_gaussians import noisy_label_cost
from server_app.transport.representations import unit_rows
from server_app.transport.verdicts import Thresholds

__all__ = ["DEFAULT_SETTINGS", "VARIANTS", "OtSettings", "Variant"]

# A covariance of d columns: its ridge as a share of the mean variance of unit rows, which is 1/d.
_RIDGE_SHARE = 0.01

_AUTHORS_THRESHOLDS = Thresholds()  # read off their plots, as those that it has by itself


@dataclass(frozen=True)
class Variant:
    """One reading of the metric: the rows of Elhussein's formula where text and code differ.

    Attributes:
        feature_weight: w_F where the caller names none.
        label_weight: w_L likewise.
        place: (rows (n, d) of a class, projection seed) -> each row, by itself, where its class is
            summarised.
        summarise: rows so placed, at least two -> what the label cost compares.
        label_cost: two such descriptions -> label cost in [0, 1].
        class_weight: (n_k, N, m_k, M) -> weight of class k, > 0.
        symmetric: whether swapping the clients leaves the cost as it is.
        rows_per_column: rows a class must have for each of the d columns, or the pair is refused.
        thresholds: of its costs, where the caller names none.
    """

    feature_weight: float
    label_weight: float
    place: Callable[[FloatArray, int], FloatArray]
    summarise: Callable[[FloatArray], Any]
    label_cost: Callable[[Any, Any], float]
    class_weight: Callable[[int, int, int, int], float]
    symmetric: bool = True
    rows_per_column: int = 0
    thresholds: Thresholds = _AUTHORS_THRESHOLDS

    def describe(self, rows: FloatArray, projection_seed: int) -> Any:
        """Return what the label cost compares of the rows (n, d) of a class."""
        return self.summarise(self.place(rows, projection_seed))


def _projected(rows: FloatArray, projection_seed: int) -> FloatArray:
    frame = public_projection(rows.shape[1], seed=projection_seed)
    return projected_into_ball(unit_rows(rows), frame)


def _ridged_gaussian(rows: FloatArray) -> Gaussian:
    return fit_gaussian(rows, _RIDGE_SHARE / rows.shape[1])


def _projected_distance(left: Gaussian | NoisyMoments, right: Gaussian | NoisyMoments) -> float:
    """Return how far two classes are apart, whichever of the two forms they are known in."""
    if isinstance(left, NoisyMoments) and isinstance(right, NoisyMoments):
        return noisy_label_cost(left, right)
    assert isinstance(left, Gaussian)
    assert isinstance(right, Gaussian)
    return hellinger_distance(left, right)


def _product_of_counts(rows_a: int, _total_a: int, rows_b: int, _total_b: int) -> float:
    return float(rows_a * rows_b)


def _mean_share(rows_a: int, total_a: int, rows_b: int, total_b: int) -> float:
    return (rows_a / total_a + rows_b / total_b) / 2


VARIANTS: Mapping[str, Variant] = {
    "paper": Variant(
        2.0, 1.0, _projected, _ridged_gaussian, _projected_distance, _product_of_counts
    ),
    "full-covariance": Variant(
        2.0,
        1.0,
        lambda rows, _seed: unit_rows(rows),
        _ridged_gaussian,
        hellinger_distance,
        _product_of_counts,
        rows_per_column=10,
    ),
    "authors": Variant(
        4.0,
        1.0,
        lambda rows, _seed: rows,
        lambda rows: rows,
        authors_label_cost,
        _mean_share,
        symmetric=False,
    ),
}
"""``paper`` follows the text, with Gaussians on 5 public projected columns; ``full-covariance``
takes the text literally, with all columns; ``authors`` does what the authors' code does."""


@dataclass(frozen=True)
class OtSettings:
    """How costs are computed.

    Attributes:
        variant: a name of ``VARIANTS``.
        feature_weight: w_F >= 0; None takes the variant's.
        label_weight: w_L >= 0; None takes the variant's.
        projection_seed: which public projection the variant ``paper`` uses.
        min_rows: a class needs this many rows at both clients, at least 2.
        max_rows: a plan carries at most this many rows per class and client; at least 2.
        subsample_seed: which rows those are.
        solver: a name of ``transport_plan.SOLVERS``.

    Raises:
        ConfigError: an unknown name, or a value outside what is said above.
    """

    variant: str = "paper"
    feature_weight: float | None = None
    label_weight: float | None = None
    projection_seed: int = 0
    min_rows: int = 20
    max_rows: int = 900
    subsample_seed: int = 0
    solver: Solver = "exact"

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ConfigError(f"ot-variant={self.variant!r}{did_you_mean(self.variant, VARIANTS)}")
        if self.solver not in SOLVERS:
            raise ConfigError(f"solver={self.solver!r}{did_you_mean(self.solver, SOLVERS)}")
        for name, rows in (("min-rows", self.min_rows), ("max-rows", self.max_rows)):
            if rows < 2:
                raise ConfigError(f"{name}={rows}: a covariance needs at least 2 rows")
        feature, label = self.weights
        if not (0 <= feature < np.inf and 0 <= label < np.inf and feature + label > 0):
            raise ConfigError(
                f"ot-feature-weight={feature} and ot-label-weight={label}: give finite values "
                ">= 0, at least one of them above 0"
            )

    @property
    def weights(self) -> tuple[float, float]:
        """The two weights (w_F, w_L) that apply."""
        default = VARIANTS[self.variant]
        return (
            default.feature_weight if self.feature_weight is None else self.feature_weight,
            default.label_weight if self.label_weight is None else self.label_weight,
        )


DEFAULT_SETTINGS = OtSettings()
"""The variant ``paper`` with its own weights."""
