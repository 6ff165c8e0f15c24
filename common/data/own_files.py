"""Own files of a user, read by what they are: saved data sets, images, arrays or tables."""

from pathlib import Path

from common.data.own_data import npz_has_quantities, read_image_folder, read_npz
from common.data.own_tables import read_table, table_has_quantities
from common.data.rows import Rows
from common.data.saved_datasets import is_saved_dataset, read_saved_dataset
from common.tables.reading import is_table

__all__ = ["own_task", "read_own"]


def read_own(
    path: Path,
    label_column: str,
    client_column: str = "",
    group_column: str = "",
    task: str = "classification",
    split_column: str = "",
) -> Rows:
    """Return the rows of a file or folder; :class:`DataError` if it is damaged or unfit.

    With ``task`` regression the label of a table or an ``.npz`` is read as a number, with auto
    where it cannot be a class.
    """
    if path.is_dir() and is_saved_dataset(path):
        return read_saved_dataset(path, label_column, client_column)
    if path.is_dir():
        return read_image_folder(path)
    if path.suffix.lower() == ".npz":
        return read_npz(path, task)
    return read_table(path, label_column, client_column, group_column, task, split_column)


def own_task(path: Path, label_column: str) -> str:
    """Return what the label of a file or folder is: of ``regression`` and ``classification``."""
    if path.suffix.lower() == ".npz":
        continuous = npz_has_quantities(path)
    else:
        continuous = is_table(path) and table_has_quantities(path, label_column)
    return "regression" if continuous else "classification"
