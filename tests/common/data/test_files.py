import numpy as np
import pytest

from common.data.files import read_arrays
from common.errors import DataError


def test_an_archive_without_an_array_lists_what_it_holds(tmp_path):
    np.savez(tmp_path / "a.npz", first=np.zeros(1), second=np.zeros(1))
    with pytest.raises(DataError, match="has no array 'X'; it holds first, second"):
        read_arrays(tmp_path / "a.npz", "X")


def test_pickled_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="cannot be read"):
        read_arrays(tmp_path / "a.npz", "X")
