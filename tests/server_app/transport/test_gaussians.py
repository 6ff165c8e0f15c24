"""Distances of Gaussians against closed forms, integrals and other libraries; the projection."""

import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import dblquad, quad
from scipy.stats import multivariate_normal, norm
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from common.errors import DataError
from server_app.transport.gaussians import (
    Gaussian,
    authors_label_cost,
    fit_gaussian,
    gaussian_wasserstein,
    hellinger_distance,
    log_bhattacharyya,
    projected_into_ball,
    public_projection,
)
from server_app.transport.representations import unit_rows


def line(mean, deviation):
    return Gaussian(np.array([mean]), np.array([[deviation**2]]))


def random_gaussian(seed, d):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(d, d + 2))
    return Gaussian(rng.normal(size=d), root @ root.T / d)


@pytest.mark.parametrize(
    ("mean_1", "dev_1", "mean_2", "dev_2"),
    [(0, 1, 0, 1), (0, 1, 2, 1), (0, 1, 0, 3), (-1, 0.5, 1.5, 2), (4, 0.1, -4, 0.1)],
)
def test_hellinger_on_a_line_is_the_closed_form(mean_1, dev_1, mean_2, dev_2):
    variances = dev_1**2 + dev_2**2
    affinity = np.sqrt(2 * dev_1 * dev_2 / variances) * np.exp(
        -((mean_1 - mean_2) ** 2) / (4 * variances)
    )
    measured = hellinger_distance(line(mean_1, dev_1), line(mean_2, dev_2))
    assert measured == pytest.approx(np.sqrt(1 - affinity), abs=1e-12)


def test_hellinger_is_the_integral_it_stands_for():
    p, q = norm(0.3, 0.8), norm(1.4, 1.7)
    half_square, _ = quad(lambda x: (np.sqrt(p.pdf(x)) - np.sqrt(q.pdf(x))) ** 2 / 2, -15, 15)
    measured = hellinger_distance(line(0.3, 0.8), line(1.4, 1.7))
    assert measured == pytest.approx(np.sqrt(half_square), abs=1e-8)


def test_the_coefficient_in_a_plane_is_the_integral_of_the_root_of_the_product():
    left = Gaussian(np.array([0.2, -0.5]), np.array([[1.0, 0.6], [0.6, 0.8]]))
    right = Gaussian(np.array([-0.4, 0.3]), np.array([[0.5, -0.2], [-0.2, 1.5]]))
    p, q = (multivariate_normal(each.mean, each.covariance) for each in (left, right))

    def integrand(y, x):
        return np.exp((p.logpdf([x, y]) + q.logpdf([x, y])) / 2)

    overlap, _ = dblquad(integrand, -6, 6, -6, 6, epsabs=1e-5, epsrel=1e-5)
    assert np.exp(log_bhattacharyya(left, right)) == pytest.approx(overlap, abs=1e-4)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 8))
def test_hellinger_is_symmetric_bounded_and_zero_for_itself(seed_1, seed_2, d):
    left, right = random_gaussian(seed_1, d), random_gaussian(seed_2, d)
    distance = hellinger_distance(left, right)
    assert 0 <= distance <= 1
    assert distance == hellinger_distance(right, left)
    assert hellinger_distance(left, left) == 0.0
    assert log_bhattacharyya(left, left) == 0.0
    third = random_gaussian(seed_1 + seed_2 + 1, d)
    assert distance <= hellinger_distance(left, third) + hellinger_distance(third, right) + 1e-9


def test_neither_thin_nor_distant_gaussians_leave_the_range():
    thin = Gaussian(np.zeros(400), 1e-6 * np.eye(400))
    far = Gaussian(np.full(400, 1e6), 1e6 * np.eye(400))
    assert hellinger_distance(thin, thin) == 0.0
    assert hellinger_distance(thin, far) == 1.0


def test_a_singular_covariance_is_refused_with_the_remedy():
    flat = Gaussian(np.zeros(2), np.array([[1.0, 1.0], [1.0, 1.0]]) - np.diag([0.0, 1e-3]))
    with pytest.raises(DataError, match="2 dimensions is not positive definite: add a ridge"):
        hellinger_distance(flat, flat)
    with pytest.raises(DataError, match="2 and 1 dimensions"):
        log_bhattacharyya(random_gaussian(0, 2), line(0, 1))


@pytest.mark.parametrize(
    ("mean", "covariance", "message"),
    [
        (np.zeros(2), np.eye(3), r"mean \(2,\) and covariance \(3, 3\)"),
        (np.zeros((2, 1)), np.eye(2), r"mean \(2, 1\)"),
        (np.array([np.nan]), np.eye(1), "not finite"),
        (np.zeros(2), np.array([[1.0, 0.5], [0.1, 1.0]]), "asymmetric by 0.4"),
    ],
)
def test_what_is_no_gaussian_is_refused(mean, covariance, message):
    with pytest.raises(DataError, match=message):
        Gaussian(mean, covariance)


def test_a_fit_is_mean_and_unbiased_covariance_with_a_ridge():
    rows = np.random.default_rng(0).normal(size=(30, 4)) + 7
    fitted = fit_gaussian(rows, ridge=0.25)
    np.testing.assert_allclose(fitted.mean, rows.mean(axis=0))
    np.testing.assert_allclose(fitted.covariance, np.cov(rows.T) + 0.25 * np.eye(4))
    with pytest.raises(DataError, match="1 rows have no covariance"):
        fit_gaussian(rows[:1])


@pytest.mark.parametrize("width", [3, 19, 20, 40])
def test_the_authors_label_cost_is_what_their_libraries_compute(width):
    rng = np.random.default_rng(width)
    first = rng.normal(size=(60, width)) * rng.uniform(0.05, 2, width)
    second = first[:40] * 1.2 + 0.3 * rng.normal(size=(40, width))
    left, right = first, second
    if width >= 20:
        scaler, pca = StandardScaler().fit(first), PCA(5).fit(StandardScaler().fit_transform(first))
        left, right = (pca.transform(scaler.transform(rows)) for rows in (first, second))
    means, covariances = [], []
    for rows in (left, right):
        values, vectors = np.linalg.eigh(np.cov(rows.T) + 1e-6 * np.eye(rows.shape[1]))
        means.append(rows.mean(axis=0))
        covariances.append(vectors @ np.diag(np.maximum(values, 1e-2)) @ vectors.T)
    middle = sum(covariances) / 2
    shift = means[0] - means[1]
    dets = np.linalg.det(np.array([*covariances, middle]))
    affinity = (dets[0] * dets[1]) ** 0.25 / np.sqrt(dets[2])
    affinity *= np.exp(-shift @ np.linalg.inv(middle) @ shift / 8)
    expected = 1 - np.sqrt(affinity)
    assert 0.01 < expected < 0.99
    assert authors_label_cost(first, second) == pytest.approx(expected, abs=1e-8)
    swapped = authors_label_cost(second, first)
    assert (swapped == pytest.approx(expected, abs=1e-9)) == (width < 20)


def test_the_authors_label_cost_survives_columns_that_never_change():
    rows = np.random.default_rng(1).normal(size=(30, 25))
    rows[:, :10] = 0.1
    assert authors_label_cost(rows, rows) == pytest.approx(0.0, abs=1e-12)
    # Columns that never change at the first client are in none of its components.
    moved = rows.copy()
    moved[:, :10] = 0.2
    assert authors_label_cost(rows, moved) == pytest.approx(0.0, abs=1e-12)
    assert 0 <= authors_label_cost(rows, np.abs(rows)) <= 1


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 8))
def test_gaussian_wasserstein_agrees_with_pot(seed_1, seed_2, d):
    left, right = random_gaussian(seed_1, d), random_gaussian(seed_2, d)
    oracle = ot.gaussian.bures_wasserstein_distance(
        left.mean, right.mean, left.covariance, right.covariance
    )
    # Squares: their rounding does not grow where the distance is near 0.
    measured = gaussian_wasserstein(left, right)
    assert measured**2 == pytest.approx(float(oracle) ** 2, abs=1e-8)
    assert measured == pytest.approx(gaussian_wasserstein(right, left), abs=1e-6)
    assert gaussian_wasserstein(left, left) == pytest.approx(0, abs=1e-6)


def test_gaussian_wasserstein_by_hand_and_for_points():
    # On a line: sqrt((m1 - m2)² + (s1 - s2)²).
    assert gaussian_wasserstein(line(1, 2), line(4, 6)) == pytest.approx(5)
    point, other = (Gaussian(np.full(3, m), np.zeros((3, 3))) for m in (0.0, 2.0))
    assert gaussian_wasserstein(point, other) == pytest.approx(np.sqrt(12))


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 1000))
def test_a_public_frame_is_orthonormal_and_fixed(width, dimensions, seed):
    frame = public_projection(width, dimensions, seed)
    assert frame.shape == (width, min(width, dimensions))
    np.testing.assert_allclose(frame.T @ frame, np.eye(frame.shape[1]), atol=1e-12)
    np.testing.assert_array_equal(frame, public_projection(width, dimensions, seed))
    if width > 1:
        assert not np.allclose(frame, public_projection(width, dimensions, seed + 1))


def test_frames_prefer_no_direction():
    entries = np.array([public_projection(8, 3, seed)[0] for seed in range(800)])
    # E[Q Q'] = (3/8) I and E[Q] = 0 for a uniform frame; deviation of the means about 0.01.
    np.testing.assert_allclose(entries.mean(axis=0), 0, atol=0.05)
    np.testing.assert_allclose((entries**2).mean(axis=0), 1 / 8, atol=0.03)


@pytest.mark.parametrize(("width", "dimensions"), [(0, 5), (5, 0)])
def test_a_frame_without_columns_is_refused(width, dimensions):
    with pytest.raises(DataError, match="at least 1 each"):
        public_projection(width, dimensions)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 1000))
def test_projected_unit_rows_stay_in_the_unit_ball(width, seed):
    rng = np.random.default_rng(seed)
    frame = public_projection(width, seed=seed)
    # The frame's own columns are the worst case: unclipped they would reach sqrt(d/r).
    rows = np.vstack([unit_rows(rng.normal(size=(20, width))), frame.T])
    projected = projected_into_ball(rows, frame)
    assert np.linalg.norm(projected, axis=1).max() <= 1 + 1e-12
    np.testing.assert_allclose(np.linalg.norm(projected[20:], axis=1), 1)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_a_row_inside_the_ball_is_scaled_and_not_clipped(seed):
    frame = public_projection(50, seed=seed)
    rows = 0.1 * unit_rows(np.random.default_rng(seed).normal(size=(10, 50)))
    np.testing.assert_allclose(projected_into_ball(rows, frame), rows @ frame * np.sqrt(10))


def test_the_scale_keeps_the_squared_length_on_average():
    rng = np.random.default_rng(0)
    row = unit_rows(rng.normal(size=(1, 60)))
    small = 0.01 * row
    squares = [
        np.sum(projected_into_ball(small, public_projection(60, seed=seed)) ** 2)
        for seed in range(400)
    ]
    assert np.mean(squares) == pytest.approx(1e-4, rel=0.1)
