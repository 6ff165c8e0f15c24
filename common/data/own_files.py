"""Own files of a user, read by what they are: saved data sets, images, arrays or tables."""

from pathlib import Path

from common.data.own_data import read_image_folder, read_npz
from common.data.own_tables import read_table
from common.data.rows import Rows
from common.data.saved_datasets import is_saved_dataset, read_saved_dataset

__all__ = ["read_own"]


def read_own(
    path: Path, label_column: str, client_column: str = "", group_column: str = ""
) -> Rows:
    """Return the rows of a file or folder; :class:`DataError` if it is damaged or unfit."""
    if path.is_dir() and is_saved_dataset(path):
        return read_saved_dataset(path, label_column, client_column)
    if path.is_dir():
        return read_image_folder(path)
    if path.suffix.lower() == ".npz":
        return read_npz(path)
    return read_table(path, label_column, client_column, group_column)
