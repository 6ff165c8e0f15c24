"""Names, ranges and the figures that belong to a variant."""

import numpy as np
import pytest

from common.errors import ConfigError
from server_app.transport.gaussians import fit_gaussian, projected_into_ball, public_projection
from server_app.transport.representations import unit_rows
from server_app.transport.variants import DEFAULT_SETTINGS, VARIANTS, OtSettings


def test_the_default_is_the_paper_with_two_to_one():
    assert OtSettings() == DEFAULT_SETTINGS
    assert DEFAULT_SETTINGS.variant == "paper"
    assert DEFAULT_SETTINGS.weights == (2.0, 1.0)


def test_weights_come_from_the_variant_one_by_one():
    assert OtSettings(variant="authors").weights == (4.0, 1.0)
    assert OtSettings(variant="authors", label_weight=0.5).weights == (4.0, 0.5)
    assert OtSettings(variant="full-covariance", feature_weight=0).weights == (0, 1.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"variant": "papers"}, "ot-variant='papers'; did you mean 'paper'"),
        ({"solver": "greedy"}, "solver='greedy'"),
        ({"min_rows": 1}, "min-rows=1: a covariance needs at least 2"),
        ({"max_rows": 0}, "max-rows=0"),
        ({"feature_weight": -1}, "ot-feature-weight=-1"),
        ({"label_weight": float("nan")}, "ot-label-weight=nan"),
        ({"label_weight": float("inf")}, "finite"),
        ({"feature_weight": 0, "label_weight": 0}, "at least one of them above 0"),
    ],
)
def test_values_that_cannot_be_used_are_named(values, message):
    with pytest.raises(ConfigError, match=message):
        OtSettings(**values)


def test_class_weights_by_hand():
    # 30 of 40 rows at the one client, 20 of 80 at the other.
    assert VARIANTS["paper"].class_weight(30, 40, 20, 80) == 600
    assert VARIANTS["full-covariance"].class_weight(30, 40, 20, 80) == 600
    assert VARIANTS["authors"].class_weight(30, 40, 20, 80) == pytest.approx(0.5)


def test_the_paper_describes_a_class_by_its_projected_unit_rows():
    rows = 7 * np.random.default_rng(0).normal(size=(40, 12))
    described = VARIANTS["paper"].describe(rows, 3)
    projected = projected_into_ball(unit_rows(rows), public_projection(12, 5, 3))
    expected = fit_gaussian(projected, 0.002)
    np.testing.assert_allclose(described.mean, expected.mean)
    np.testing.assert_allclose(described.covariance, expected.covariance)
    assert not np.allclose(described.mean, VARIANTS["paper"].describe(rows, 4).mean)


def test_the_full_covariance_keeps_every_column_of_the_unit_rows():
    rows = np.random.default_rng(0).normal(size=(40, 4))
    described = VARIANTS["full-covariance"].describe(rows, 0)
    np.testing.assert_allclose(described.covariance, np.cov(unit_rows(rows).T) + 0.0025 * np.eye(4))
