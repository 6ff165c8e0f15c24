"""A user's own .npz and image folders: what is read, and what each mistake is told."""

import numpy as np
import pytest
from PIL import Image

from common.data.own_data import read_image_folder, read_npz
from common.errors import DataError


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


class TestNpz:
    def test_labels_and_clients_are_numbered_in_sorted_order(self, tmp_path):
        rows = read_npz(
            save(
                tmp_path / "own.npz",
                X=np.arange(8.0).reshape(4, 2),
                y=np.array([30, 4, 30, 5]),
                client=np.array(["south", "north", "north", "south"]),
                test=np.array([0, 1, 0, 0]),
            )
        )
        assert rows.class_names == ("4", "5", "30")
        assert rows.y.tolist() == [2, 0, 2, 1]
        assert rows.owner_names == ("north", "south")
        assert rows.owner.tolist() == [1, 0, 0, 1]
        assert rows.test.tolist() == [False, True, False, False]

    @pytest.mark.parametrize(
        ("labels", "names"),
        [
            (np.array([1.0, 0.0, 1.0]), ("0", "1")),
            (np.array([True, False, True]), ("0", "1")),
            (np.array(["b", "a", "b"]), ("a", "b")),
            (np.array([7, -2, 7], np.int8), ("-2", "7")),
        ],
    )
    def test_whole_numbers_and_texts_are_labels(self, tmp_path, labels, names):
        rows = read_npz(save(tmp_path / "own.npz", X=np.zeros((3, 2)), y=labels))
        assert rows.class_names == names
        assert rows.y.tolist() == [1, 0, 1]
        assert rows.owner is None
        assert rows.test is None

    @pytest.mark.parametrize(
        ("shape", "expected"),
        [
            ((5, 7), (5, 7)),
            ((5, 8, 9), (5, 1, 8, 9)),
            ((5, 1, 8, 9), (5, 1, 8, 9)),
            ((5, 3, 8, 9), (5, 3, 8, 9)),
            ((5, 8, 9, 3), (5, 3, 8, 9)),
            ((5, 3, 9, 3), (5, 3, 9, 3)),
        ],
    )
    def test_images_become_channels_first(self, tmp_path, shape, expected):
        x = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
        rows = read_npz(save(tmp_path / "own.npz", X=x, y=np.arange(5)))
        assert rows.x.shape == expected
        if shape == (5, 8, 9, 3):
            np.testing.assert_array_equal(rows.x[2, 1], x[2, :, :, 1])

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"X": np.zeros((2, 2))}, r"own\.npz has no array 'y'; it holds X"),
            ({"X": np.zeros((2, 2)), "y": np.array([0.5, 1])}, "own.npz: y has shape .*float64"),
            ({"X": np.zeros((2, 2)), "y": np.array([np.inf, 1])}, "own.npz: y"),
            ({"X": np.zeros((2, 2)), "y": np.zeros((2, 1), int)}, "one whole number or text"),
            ({"X": np.zeros((2, 2)), "y": np.zeros(3, int)}, "2 rows .* with 3 labels"),
            ({"X": np.array([["a"], ["b"]]), "y": np.zeros(2, int)}, "X holds <U1"),
            ({"X": np.zeros((2, 4, 4, 4)), "y": np.zeros(2, int)}, r"X has shape \(2, 4, 4, 4\)"),
            ({"X": np.zeros(2), "y": np.zeros(2, int)}, r"X has shape \(2,\)"),
            ({"X": np.array([[1.0], [np.nan]]), "y": np.zeros(2, int)}, "row 1 holds nan"),
            (
                {"X": np.zeros((2, 2)), "y": np.zeros(2, int), "test": np.array([0, 2])},
                "test must hold one 0",
            ),
            (
                {"X": np.zeros((2, 2)), "y": np.zeros(2, int), "client": np.array([0.5, 1])},
                "own.npz: client",
            ),
        ],
    )
    def test_unfit_arrays_are_named(self, tmp_path, arrays, message):
        with pytest.raises(DataError, match=message):
            read_npz(save(tmp_path / "own.npz", **arrays))


def write_image(path, colour, size=(4, 3), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


class TestImageFolder:
    def test_sub_folders_are_classes(self, tmp_path):
        write_image(tmp_path / "dog" / "2.png", (1, 2, 3))
        write_image(tmp_path / "cat" / "1.PNG", (4, 5, 6))
        write_image(tmp_path / "cat" / "0.png", (7, 8, 9))
        write_image(tmp_path / ".thumbnails" / "0.png", (0, 0, 0))
        (tmp_path / "cat" / "notes.txt").write_text("not an image")
        rows = read_image_folder(tmp_path)
        assert rows.x.shape == (3, 3, 3, 4)  # rows, channels, height, width
        assert rows.x[:, :, 0, 0].tolist() == [[7, 8, 9], [4, 5, 6], [1, 2, 3]]
        assert rows.class_names == ("cat", "dog")
        assert rows.y.tolist() == [0, 0, 1]
        assert rows.test is None

    def test_train_and_test_folders_are_a_split(self, tmp_path):
        for name, colour in (("train/a/0", 1), ("train/b/0", 2), ("test/b/0", 3)):
            write_image(tmp_path / f"{name}.png", colour, mode="L")
        rows = read_image_folder(tmp_path)
        assert rows.x.shape == (3, 1, 3, 4)
        assert rows.x[:, 0, 0, 0].tolist() == [1, 2, 3]
        assert rows.y.tolist() == [0, 1, 1]
        assert rows.test.tolist() == [False, False, True]

    def test_an_empty_class_keeps_its_number(self, tmp_path):
        (tmp_path / "a").mkdir()
        write_image(tmp_path / "b" / "0.jpg", (1, 2, 3))
        rows = read_image_folder(tmp_path)
        assert rows.class_names == ("a", "b")
        assert rows.y.tolist() == [1]

    @pytest.mark.parametrize(
        ("size", "mode", "message"),
        [
            ((5, 3), "RGB", r"b.1\.png is 5x3 RGB, .*a.0\.png is 4x3 RGB"),
            ((4, 3), "L", r"b.1\.png is 4x3 grey, .*a.0\.png is 4x3 RGB"),
            ((4, 3), "RGBA", r"b.1\.png has colour mode RGBA; save it as"),
        ],
    )
    def test_the_first_image_that_differs_is_named(self, tmp_path, size, mode, message):
        write_image(tmp_path / "a" / "0.png", 0)
        write_image(tmp_path / "b" / "1.png", 0, size, mode)
        with pytest.raises(DataError, match=message):
            read_image_folder(tmp_path)

    def test_a_file_that_is_no_image_is_named(self, tmp_path):
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "0.png").write_bytes(b"not an image")
        with pytest.raises(DataError, match=r"0\.png cannot be read as an image"):
            read_image_folder(tmp_path)

    def test_a_folder_without_images_is_refused(self, tmp_path):
        (tmp_path / "a").mkdir()
        with pytest.raises(DataError, match=r"no \.png/\.jpg/\.jpeg in class sub-folders"):
            read_image_folder(tmp_path)

    def test_a_test_class_without_training_folder_is_named(self, tmp_path):
        write_image(tmp_path / "train" / "cat" / "0.png", 0)
        write_image(tmp_path / "test" / "Cat" / "0.png", 0)
        with pytest.raises(DataError, match="Cat has no counterpart in train/; classes: cat"):
            read_image_folder(tmp_path)


def test_windows_are_no_images_where_the_file_says_so(tmp_path):
    x = np.arange(2 * 7 * 64, dtype=np.float32).reshape(2, 7, 64)
    arrays = {"X": x, "y": np.array([0, 1])}
    path = tmp_path / "signals.npz"
    np.savez(path, **arrays, kind="windows")
    assert np.array_equal(read_npz(path).x, x)
    np.savez(path, **arrays)
    assert read_npz(path).x.shape == (2, 1, 7, 64)
    for kind, part, says in (("wave", x, "kind is 'wave'"), ("windows", x[:, 0], "shape .2, 64.;")):
        np.savez(path, **arrays | {"X": part}, kind=kind)
        with pytest.raises(DataError, match=says):
            read_npz(path)
