"""A federation whose sites see alike what they hold, and differently what others hold."""

import re

import numpy as np
import pytest

from client_app.shifted_sites import shifted
from client_app.simulated_sites import dealt, simulated_federation
from common.config import Settings
from common.data.datasets import Dataset
from common.data.shifts import IMAGE_SHIFTS, rotated
from common.errors import ConfigError
from common.splits import SiteRows

RNG = np.random.default_rng(0)
SITES = [
    SiteRows("a", np.array([0, 3, 4]), np.array([1])),
    SiteRows("b", np.array([1, 6]), np.array([], np.int64)),
    SiteRows("c", np.array([2, 5]), np.array([0, 2])),
]


def images(channels=3, **changes):
    # 0 and 1 occur in every channel, so that values are brightness
    train, test = (RNG.random((n, channels, 9, 7), dtype=np.float32) for n in (7, 3))
    train[0, :, 0, 0], train[0, :, 0, 1] = 0, 1
    values = {
        "train_x": train,
        "train_y": np.zeros(7, np.int64),
        "test_x": test,
        "test_y": np.zeros(3, np.int64),
    }
    return Dataset(name="toy", num_classes=1, class_names=("x",), **(values | changes))


def standardised(x, like):
    axes = (0, 2, 3)
    mean, std = (f(like, axis=axes, keepdims=True, dtype=np.float64) for f in (np.mean, np.std))
    return (x - mean) / std


@pytest.mark.parametrize("kind", IMAGE_SHIFTS)
def test_every_site_is_changed_by_its_place_in_training_and_test_rows(kind):
    dataset = images()
    change = IMAGE_SHIFTS[kind]
    train, test = dataset.train_x.copy(), dataset.test_x.copy()
    train[[0, 3, 4]], train[[2, 5]] = change(train[[0, 3, 4]], -0.5), change(train[[2, 5]], 0.5)
    test[[1]], test[[0, 2]] = change(test[[1]], -0.5), change(test[[0, 2]], 0.5)

    found = shifted(dataset, SITES, kind, 0.5)

    np.testing.assert_allclose(found.train_x, standardised(train, train), atol=1e-5)
    np.testing.assert_allclose(found.test_x, standardised(test, train), atol=1e-5)
    assert np.array_equal(found.train_y, dataset.train_y)


def test_the_unit_of_the_pixels_does_not_matter():
    dataset = images()
    other = images(train_x=dataset.train_x * 255 - 40, test_x=dataset.test_x * 255 - 40)
    for kind in IMAGE_SHIFTS:
        one, two = (shifted(each, SITES, kind, 0.8) for each in (dataset, other))
        np.testing.assert_allclose(one.train_x, two.train_x, atol=1e-4)


def test_size_0_is_the_data_set_itself():
    dataset = images()
    assert all(shifted(dataset, SITES, kind, 0.0) is dataset for kind in IMAGE_SHIFTS)


def test_a_channel_without_any_contrast_stays_so():
    dataset = images()
    dataset.train_x[:, 1] = dataset.test_x[:, 1] = 7
    found = shifted(dataset, SITES, "rotation", 1.0)
    assert not found.train_x[:, 1].any()


@pytest.mark.parametrize("size", [0.0, 0.5])
def test_tables_are_refused(size):
    table = images(train_x=np.zeros((7, 4), np.float32), test_x=np.zeros((3, 4), np.float32))
    said = "shift = zoom: changes images, but a row of dataset=toy has shape (4,)"
    with pytest.raises(ConfigError, match=re.escape(said)):
        shifted(table, SITES, "zoom", size)


def test_grey_images_have_no_colour():
    with pytest.raises(ConfigError, match=r"shift = colour: .* have 1 channel"):
        shifted(images(1), SITES, "colour", 0.5)


def federation(**changes):
    settings = Settings.parse({"num-clients": 3, "split": "iid", **changes})
    return simulated_federation(settings)


def test_a_federation_of_digits_repeats_and_stands_apart():
    plain, _ = federation()
    same, _ = federation(shift="rotation")
    assert np.array_equal(same.train_x, plain.train_x)
    assert np.array_equal(same.test_x, plain.test_x)

    dataset, sites = federation(shift="rotation", **{"shift-size": 1.0})
    dealt.cache_clear()
    again, _ = federation(shift="rotation", **{"shift-size": 1.0})
    assert np.array_equal(dataset.train_x, again.train_x)
    # 16 grey values: brightness of the plain digits, turned by hand, in the new units
    low, high = plain.train_x.min(), plain.train_x.max()
    for site, place in zip(sites, (-1.0, 0.0, 1.0), strict=True):
        light = (plain.test_x[site.test] - low) / (high - low)
        expected = rotated(light, place) if place else light
        found = dataset.test_x[site.test]
        line = np.polyfit(expected.ravel(), found.ravel(), 1)
        np.testing.assert_allclose(np.polyval(line, expected), found, atol=1e-4)
