"""Saved data sets: folders of the package datasets, read as any other own data."""

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value

from common.data.datasets import load_dataset
from common.data.saved_datasets import is_saved_dataset, read_saved_dataset
from common.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def pictures():
    return np.random.default_rng(0).integers(0, 255, (12, 8, 6, 3)).astype(np.uint8)


def images(pictures, labels=(0, 1, 2)):
    kinds = Features({"image": Image(), "label": ClassLabel(names=["cat", "dog", "owl"])})
    return Dataset.from_dict({"image": list(pictures), "label": list(labels) * 4}, features=kinds)


def test_images_keep_their_pixels_classes_and_split(tmp_path, pictures):
    parts = DatasetDict({"train": images(pictures), "test": images(pictures[::-1])})
    parts.save_to_disk(tmp_path / "pets")
    assert is_saved_dataset(tmp_path / "pets")
    rows = read_saved_dataset(tmp_path / "pets", "label", "")
    assert np.array_equal(rows.x[:12], pictures.transpose(0, 3, 1, 2))
    assert rows.class_names == ("cat", "dog", "owl")
    assert rows.y.tolist() == [0, 1, 2] * 8
    assert rows.test.tolist() == [False] * 12 + [True] * 12
    dataset = load_dataset(str(tmp_path / "pets"), seed=0)
    assert dataset.input_shape == (3, 8, 6)
    assert len(dataset.test_y) == 12


def test_tables_have_columns_and_clients(tmp_path):
    columns = {"a": [1, 2, 3, 4], "ward": ["n", "s", "n", "s"], "b": [0.5, 1.5, 2.5, 3.5]}
    Dataset.from_dict(columns | {"sick": ["no", "yes"] * 2}).save_to_disk(tmp_path / "beds")
    rows = read_saved_dataset(tmp_path / "beds", "sick", "ward")
    assert rows.columns == ("a", "b")
    assert rows.x.tolist() == [[1, 0.5], [2, 1.5], [3, 2.5], [4, 3.5]]
    assert (rows.class_names, rows.y.tolist()) == (("no", "yes"), [0, 1, 0, 1])
    assert (rows.owner_names, rows.owner.tolist()) == (("n", "s"), [0, 1, 0, 1])
    assert rows.test is None
    with pytest.raises(DataError, match=r"column 'ward' holds .*; leave it out, or make numbers"):
        read_saved_dataset(tmp_path / "beds", "sick", "")
    with pytest.raises(DataError, match="label-column=sik is no column of beds; did you mean 'sic"):
        read_saved_dataset(tmp_path / "beds", "sik", "")


def test_what_cannot_be_used_is_named(tmp_path, pictures, monkeypatch):
    small = Dataset.from_dict(
        {"a": [1], "label": [0]}, features=Features({"a": Value("int64"), "label": Value("int64")})
    )
    DatasetDict({"train": small, "validation": small}).save_to_disk(tmp_path / "three")
    with pytest.raises(DataError, match="has the splits train, validation; save train, or train"):
        read_saved_dataset(tmp_path / "three", "label", "")
    mixed = [pictures[0], pictures[1][:4], *pictures[2:]]
    images(mixed).save_to_disk(tmp_path / "mixed")
    with pytest.raises(DataError, match="mixed: image 1 is 6x4 RGB, mixed: image 0 is 6x8"):
        read_saved_dataset(tmp_path / "mixed", "label", "")
    [shard] = (tmp_path / "mixed").glob("*.arrow")
    shard.write_bytes(b"not Arrow")
    with pytest.raises(DataError, match="mixed cannot be read"):
        read_saved_dataset(tmp_path / "mixed", "label", "")
    monkeypatch.setattr("common.data.saved_datasets.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'coterie\[hugging-face\]'"):
        read_saved_dataset(tmp_path / "mixed", "label", "")
