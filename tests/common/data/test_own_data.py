"""A user's own .npz: what is read, and what each mistake is told."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix, save_npz

from common.data.datasets import load_dataset
from common.data.own_data import read_new_rows, read_npz
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


def test_token_ids_are_told_by_their_kind_and_stay_what_they_are(tmp_path):
    ids, y = np.arange(24).reshape(6, 4) % 7, np.array([0, 1] * 3)
    np.savez(tmp_path / "notes.npz", X=ids, y=y, kind="tokens")
    rows = read_npz(tmp_path / "notes.npz")
    assert rows.kind == "tokens"
    np.testing.assert_array_equal(rows.x, ids)
    dataset = load_dataset(str(tmp_path / "notes.npz"), seed=0)
    both = np.concatenate([dataset.train.x, dataset.test.x])
    assert both.dtype == np.int64
    assert sorted(map(tuple, both)) == sorted(map(tuple, ids))
    for wrong in (ids.astype(float), ids[:, 0], -1 - ids):
        np.savez(tmp_path / "wrong.npz", X=wrong, y=y, kind="tokens")
        with pytest.raises(DataError, match="tokens are"):
            read_npz(tmp_path / "wrong.npz")


SPARSE = csr_matrix(np.array([[0.0, 2, 0], [1, 0, 0], [0, 0, 0], [0, 0, 3]]))


def test_a_sparse_matrix_is_read_as_the_same_rows_by_its_parts(tmp_path):
    save_npz(tmp_path / "x.npz", SPARSE)  # as scipy has it, and labels beside it
    with np.load(tmp_path / "x.npz") as parts:
        saved = dict(parts) | {"y": np.array([0, 1, 0, 1])}
    path = save(tmp_path / "own.npz", **saved)
    assert read_npz(path).x.tolist() == SPARSE.toarray().tolist()
    assert read_new_rows(path, ())[0].tolist() == SPARSE.toarray().tolist()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"indices": np.array([1, 0, 7])}, "holds no sparse matrix"),
        ({"indptr": np.array([0, 1, 2, 2])}, "holds no sparse matrix"),
        ({"shape": np.array([4, 2**60])}, "do not fit into memory|holds no sparse matrix"),
        ({"format": np.array("csc")}, "format 'csc'; save its .tocsr"),
    ],
)
def test_what_is_no_sparse_matrix_of_rows_is_refused(tmp_path, changed, says):
    parts = {key: getattr(SPARSE, key) for key in ("data", "indices", "indptr", "shape")}
    with pytest.raises(DataError, match=says):
        read_npz(save(tmp_path / "own.npz", y=np.zeros(4, int), **(parts | changed)))
