"""The OT cost: how far two clients' data are apart, seen through one model, in [0, 1].

For every class that both clients hold, rows are matched by optimal transport on the angle between
their representations (feature cost), and the class-conditional Gaussians are compared (label cost).
What one client contributes is prepared once and used for all pairs.

Source: Elhussein: "A Universal Metric of Dataset Similarity for Cross-silo Federated Learning"
(Elhussein, Gürsoy), and the authors' published code where the variant ``authors`` follows it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError
from server_app.dissimilarity import FloatArray
from server_app.ot_settings import DEFAULT_SETTINGS, VARIANTS, OtSettings
from server_app.representations import (
    Representations,
    check_same_width,
    subsampled,
    unit_rows,
)
from server_app.transport_plan import Solver, transport_cost

__all__ = [
    "FEW_ROWS",
    "ClassCost",
    "NullCost",
    "OtCost",
    "PairCosts",
    "null_cost",
    "ot_cost",
    "pairwise_costs",
]

FEW_ROWS = 50
"""Fewer rows of a class than this overestimate its cost: a warning says so."""


@dataclass(frozen=True)
class ClassCost:
    """One class that both clients hold.

    Attributes:
        rows_a: rows the first client holds of it, n_k.
        rows_b: rows the second client holds of it, m_k.
        feature_cost: cost of the transport on angles, in [0, 1].
        label_cost: distance of the class-conditional Gaussians, in [0, 1].
        cost: their weighted mean, in [0, 1].
        weight: share of this class in the total, not normalised, > 0.
    """

    rows_a: int
    rows_b: int
    feature_cost: float
    label_cost: float
    cost: float
    weight: float

    def __post_init__(self) -> None:
        for name in ("feature_cost", "label_cost", "cost"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise DataError(f"{name}={getattr(self, name)} of a class is not in [0, 1]")
        if not self.weight > 0:
            raise DataError(f"weight={self.weight} of a class is not above 0")


@dataclass(frozen=True)
class OtCost:
    """The cost of one pair.

    Attributes:
        per_class: every class that was compared, in ascending order.
        coverage: share of the first and of the second client's rows that belong to these classes.
        warnings: sentences about classes with few rows, and about what was left out.
    """

    per_class: Mapping[int, ClassCost]
    coverage: tuple[float, float]
    warnings: tuple[str, ...]

    def __post_init__(self) -> None:
        if not all(0.0 <= share <= 1.0 for share in self.coverage):
            raise DataError(f"coverage={self.coverage} is not in [0, 1]")
        object.__setattr__(self, "per_class", dict(self.per_class))

    @property
    def total(self) -> float | None:
        """Weighted mean of the classes' costs in [0, 1]; None where there is nothing to compare."""
        classes = self.per_class.values()
        if not classes:
            return None
        weights = [each.weight for each in classes]
        return float(np.average([each.cost for each in classes], weights=weights))


@dataclass(frozen=True, eq=False)
class PairCosts:
    """The costs of all pairs of n clients.

    Attributes:
        totals: (n, n) in [0, 1], NaN where there is nothing to compare, 0 on the diagonal. Row i,
            column j: client i first, which matters to the variant ``authors`` alone.
        coverage: (n, n) in [0, 1]; row i, column j: share of client i's rows that belong to
            classes compared with client j. Diagonal: with itself.
        pairs: the pair behind each entry, for i < j, and for i > j where the order matters.
    """

    totals: FloatArray
    coverage: FloatArray
    pairs: Mapping[tuple[int, int], OtCost]


@dataclass(frozen=True, eq=False)
class NullCost:
    """Costs between resamples of one client: what chance alone makes of equal data.

    Attributes:
        costs: (draws,) in [0, 1].
    """

    costs: FloatArray

    @property
    def mean(self) -> float:
        """Mean cost of equal data."""
        return float(self.costs.mean())

    @property
    def high(self) -> float:
        """The 95 % quantile: a pair's cost up to this may be chance."""
        return float(np.quantile(self.costs, 0.95))


@dataclass(frozen=True, eq=False)
class _ClassRows:
    """What one client contributes to the comparison of one class."""

    count: int
    unit: FloatArray
    description: Any


@dataclass(frozen=True, eq=False)
class _Prepared:
    """What one client contributes to all its pairs."""

    width: int
    class_counts: Mapping[int, int]
    classes: Mapping[int, _ClassRows]

    @property
    def total_rows(self) -> int:
        return sum(self.class_counts.values())

    def coverage(self, compared: Iterator[int] | Sequence[int]) -> float:
        covered = sum(self.class_counts[label] for label in compared)
        return covered / self.total_rows if covered else 0.0


def ot_cost(
    h_a: NDArray[np.floating[Any]],
    y_a: NDArray[np.integer[Any]],
    h_b: NDArray[np.floating[Any]],
    y_b: NDArray[np.integer[Any]],
    variant: str = "paper",
    feature_weight: float | None = None,
    label_weight: float | None = None,
    projection_seed: int = 0,
    min_rows: int = 20,
    max_rows: int = 900,
    subsample_seed: int = 0,
    solver: Solver = "exact",
) -> OtCost:
    """Return the OT cost of two clients; its total lies in [0, 1], 0 for equal rows.

    Args:
        h_a: representations (n, d) of the first client's rows by the shared model.
        y_a: their classes (n,).
        h_b: representations (m, d) of the second client's rows by the same model.
        y_b: their classes (m,).
        variant: this and all that follow: see ``OtSettings``.
        feature_weight: see there.
        label_weight: see there.
        projection_seed: see there.
        min_rows: see there.
        max_rows: see there.
        subsample_seed: see there.
        solver: see there.

    Raises:
        ConfigError: as ``OtSettings``.
        DataError: as ``Representations``; two widths; or, for ``full-covariance``, a class with
            fewer than 10 rows per column.
    """
    settings = OtSettings(
        variant=variant,
        feature_weight=feature_weight,
        label_weight=label_weight,
        projection_seed=projection_seed,
        min_rows=min_rows,
        max_rows=max_rows,
        subsample_seed=subsample_seed,
        solver=solver,
    )
    first = _prepared(Representations(h_a, y_a), settings)
    return _pair_cost(first, _prepared(Representations(h_b, y_b), settings), settings)


def pairwise_costs(
    representations: Sequence[tuple[NDArray[np.floating[Any]], NDArray[np.integer[Any]]]],
    settings: OtSettings = DEFAULT_SETTINGS,
) -> PairCosts:
    """Return the OT costs of all pairs of clients.

    Args:
        representations: (h (n_i, d), y (n_i,)) of every client, by one model.
        settings: how costs are computed.

    Raises:
        DataError: as ``ot_cost``.
    """
    sites = [_prepared(Representations(h, y), settings) for h, y in representations]
    n = len(sites)
    totals, coverage = np.zeros((n, n)), np.empty((n, n))
    pairs = {}
    for i, site in enumerate(sites):
        coverage[i, i] = site.coverage(list(site.classes))
        for j in range(i + 1, n):
            there = pairs[i, j] = _pair_cost(site, sites[j], settings)
            back = there
            if not VARIANTS[settings.variant].symmetric:
                back = pairs[j, i] = _pair_cost(sites[j], site, settings)
            # None, nothing to compare, becomes NaN.
            totals[i, j], totals[j, i] = np.array([there.total, back.total], dtype=np.float64)
            coverage[i, j], coverage[j, i] = there.coverage
    return PairCosts(totals, coverage, pairs)


def null_cost(
    h: NDArray[np.floating[Any]],
    y: NDArray[np.integer[Any]],
    rows_a: Mapping[int, int],
    rows_b: Mapping[int, int],
    rng: np.random.Generator,
    draws: int = 20,
    settings: OtSettings = DEFAULT_SETTINGS,
) -> NullCost:
    """Return OT costs between resamples of one client, as large as a pair's clients are.

    With enough rows of a class the two resamples are disjoint. Else the Gaussians are those of two
    bootstrap samples, whose distance is right on average, and the plan runs between disjoint parts
    of the rows: copies of one row on both sides would make the feature cost a third too low.

    Args:
        h: representations (n, d) of the client's rows.
        y: their classes (n,).
        rows_a: rows of every class at the pair's first client.
        rows_b: rows of every class at its second client. As in ``ot_cost``, classes with fewer
            than ``min_rows`` rows on either side are left out.
        rng: draws the resamples.
        draws: number of resamples, at least 1.
        settings: how costs are computed.

    Raises:
        DataError: no class with ``min_rows`` rows on both sides, a class of which the client
            itself has fewer, or no draws.
    """
    site = Representations(h, y)
    compared = [label for label in sorted(rows_a) if _shared(label, rows_a, rows_b, settings)]
    if not compared or draws < 1:
        raise DataError(
            f"a null of {draws} draws over {len(compared)} classes does not exist: give at least 1 "
            f"draw and a pair that shares a class with min-rows={settings.min_rows} rows"
        )
    for label in compared:
        held = site.class_counts.get(label, 0)
        if held < settings.min_rows:
            raise DataError(
                f"class {label}: the client holds {held} rows, fewer than "
                f"min-rows={settings.min_rows}; resample the other client of the pair"
            )
    costs = [
        _pair_cost(*_resampled(site, compared, rows_a, rows_b, rng, settings), settings).total
        for _ in range(draws)
    ]
    return NullCost(np.array(costs, dtype=np.float64))


def _prepared(site: Representations, settings: OtSettings) -> _Prepared:
    classes = {}
    for label, count in site.class_counts.items():
        if count >= settings.min_rows:
            rows = site.of_class(label)
            carried = subsampled(rows, settings.max_rows, settings.subsample_seed, label)
            classes[label] = _class_rows(count, carried, rows, settings)
    return _Prepared(site.width, site.class_counts, classes)


def _class_rows(
    count: int, carried: FloatArray, described: FloatArray, settings: OtSettings
) -> _ClassRows:
    variant = VARIANTS[settings.variant]
    description = variant.describe(described, settings.projection_seed)
    return _ClassRows(count, unit_rows(carried), description)


def _shared(
    label: int, rows_a: Mapping[int, int], rows_b: Mapping[int, int], settings: OtSettings
) -> bool:
    return min(rows_a.get(label, 0), rows_b.get(label, 0)) >= settings.min_rows


def _pair_cost(first: _Prepared, second: _Prepared, settings: OtSettings) -> OtCost:
    check_same_width(first.width, second.width)
    compared = [label for label in first.classes if label in second.classes]
    _refuse_few_rows_per_column(compared, first, second, settings)
    return OtCost(
        {label: _class_cost(label, first, second, settings) for label in compared},
        (first.coverage(compared), second.coverage(compared)),
        tuple(_warnings(compared, first, second, settings)),
    )


def _class_cost(label: int, first: _Prepared, second: _Prepared, settings: OtSettings) -> ClassCost:
    a, b = first.classes[label], second.classes[label]
    variant = VARIANTS[settings.variant]
    feature = min(transport_cost(_feature_costs(a.unit, b.unit), settings.solver), 1.0)
    label_cost = variant.label_cost(a.description, b.description)
    feature_weight, label_weight = settings.weights
    # Elhussein: C_ij = (w_F F_ij + w_L H)/(w_F + w_L). H is one number inside a class, so the plan
    # that is best for F is best for C.
    cost = (feature_weight * feature + label_weight * label_cost) / (feature_weight + label_weight)
    weight = variant.class_weight(a.count, first.total_rows, b.count, second.total_rows)
    return ClassCost(a.count, b.count, feature, label_cost, min(cost, 1.0), weight)


def _feature_costs(unit_a: FloatArray, unit_b: FloatArray) -> FloatArray:
    """Return (1 - cos)/2, (n, m) in [0, 1]; rows of zeros are equal, and half way from others."""
    costs: FloatArray = np.clip((1.0 - unit_a @ unit_b.T) / 2.0, 0.0, 1.0)
    costs[np.ix_(~unit_a.any(axis=1), ~unit_b.any(axis=1))] = 0.0
    return costs


def _refuse_few_rows_per_column(
    compared: Sequence[int], first: _Prepared, second: _Prepared, settings: OtSettings
) -> None:
    needed = VARIANTS[settings.variant].rows_per_column * first.width
    for label in compared:
        held = min(first.classes[label].count, second.classes[label].count)
        if held < needed:
            raise DataError(
                f"class {label}: {held} rows for a covariance of {first.width} columns, under "
                f"{needed} even equal data look different; use ot-variant=paper, or "
                f"min-rows={needed}"
            )


def _warnings(
    compared: Sequence[int], first: _Prepared, second: _Prepared, settings: OtSettings
) -> Iterator[str]:
    shared = first.class_counts.keys() & second.class_counts.keys()
    for label in sorted(shared):
        counts = f"{first.class_counts[label]} and {second.class_counts[label]} rows"
        if label not in compared:
            yield f"class {label} left out: {counts}, min-rows={settings.min_rows}"
        elif min(first.class_counts[label], second.class_counts[label]) < FEW_ROWS:
            yield f"class {label}: {counts}; fewer than {FEW_ROWS} overestimate the cost"
    if not compared:
        yield f"nothing to compare: no class has min-rows={settings.min_rows} rows at both clients"
    if compared and VARIANTS[settings.variant].rows_per_column:
        yield "the full covariance overestimates the label cost: compare it with the null"


def _resampled(
    site: Representations,
    compared: Sequence[int],
    rows_a: Mapping[int, int],
    rows_b: Mapping[int, int],
    rng: np.random.Generator,
    settings: OtSettings,
) -> tuple[_Prepared, _Prepared]:
    classes: tuple[dict[int, _ClassRows], dict[int, _ClassRows]] = ({}, {})
    for label in compared:
        counts = (rows_a[label], rows_b[label])
        samples = _two_samples(site.of_class(label), counts, rng)
        for side, count, (carried, described) in zip(classes, counts, samples, strict=True):
            side[label] = _class_rows(count, carried[: settings.max_rows], described, settings)
    return (
        _Prepared(site.width, dict(rows_a), classes[0]),
        _Prepared(site.width, dict(rows_b), classes[1]),
    )


def _two_samples(
    rows: FloatArray, counts: tuple[int, int], rng: np.random.Generator
) -> list[tuple[FloatArray, FloatArray]]:
    """Return for both sides the rows that the plan carries and those the Gaussian describes."""
    shuffled = rows[rng.permutation(len(rows))]
    if sum(counts) <= len(rows):
        sides = shuffled[: counts[0]], shuffled[counts[0] : sum(counts)]
        return [(side, side) for side in sides]
    # Disjoint parts in proportion to the counts, at least one row each.
    cut = int(np.clip(round(len(rows) * counts[0] / sum(counts)), 1, len(rows) - 1))
    parts = shuffled[:cut], shuffled[cut:]
    return [
        (part[:count], rows[rng.integers(len(rows), size=count)])
        for part, count in zip(parts, counts, strict=True)
    ]
