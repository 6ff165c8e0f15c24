"""Recalibration: the temperature that was put in is found, by an oracle too; and what stays."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from common.evaluation.final import calibration, calibration_error
from common.evaluation.recalibration import Recalibration, recalibrated, temperature


def rows(n=4000, classes=3, sharper=2.5, seed=0):
    """Labels drawn from softmax(logits), of which a model says softmax(sharper * logits)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, classes)) * 1.5
    labels = np.array([rng.choice(classes, p=p) for p in softmax(logits, axis=1)])
    return softmax(sharper * logits, axis=1), labels


@pytest.mark.parametrize("sharper", [0.5, 1.0, 2.5])
def test_the_factor_that_made_a_model_too_sure_is_found_and_undone(sharper):
    said, labels = rows(sharper=sharper)
    found = temperature(said, labels)
    assert found == pytest.approx(sharper, rel=0.1)
    again = recalibrated(said, found)
    assert log_loss(labels, again) <= log_loss(labels, said) + 1e-9
    assert (again.argmax(axis=1) == said.argmax(axis=1)).all()
    np.testing.assert_allclose(again.sum(axis=1), 1)


def test_of_two_classes_it_is_a_logistic_regression_without_intercept():
    said, labels = rows(classes=2)
    logits = np.log(said[:, 1] / said[:, 0])[:, None]
    oracle = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10).fit(logits, labels)
    assert temperature(said, labels) == pytest.approx(1 / oracle.coef_[0, 0], rel=1e-3)


def test_the_error_after_it_is_of_rows_that_another_half_told():
    said, labels = rows()
    found = Recalibration.of(said, labels, None, np.random.default_rng(1))
    assert found.error < calibration_error(calibration(said, labels)) / 3
    # a temperature of few rows that fits them by chance is told so by the other half
    few, own = rows(24, sharper=1.0, seed=5)
    told = Recalibration.of(few, own, None, np.random.default_rng(1))
    assert 0 <= told.error <= 1


def test_rows_of_one_group_lie_in_one_half_and_too_few_rows_tell_nothing():
    said, labels = rows(40)
    twice = np.repeat(said, 2, axis=0), np.repeat(labels, 2), np.repeat(np.arange(40), 2)
    found = Recalibration.of(*twice, np.random.default_rng(0))
    assert found.temperature == pytest.approx(temperature(said, labels), rel=1e-4)
    for few in ((said[:19], labels[:19]), (said, np.zeros(40, np.int64))):
        nothing = Recalibration.of(*few, None, np.random.default_rng(0))
        assert np.isnan([nothing.temperature, nothing.error]).all()


def test_probabilities_of_nought_and_one_have_a_temperature():
    said = np.array([[1.0, 0.0], [0.0, 1.0]] * 20)
    labels = np.array([0, 1] * 18 + [1, 0] * 2)
    found = temperature(said, labels)
    assert 1 < found <= 20.1
    assert np.isfinite(recalibrated(said, found)).all()
