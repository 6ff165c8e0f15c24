"""Tables of sites: one file by the federation's schema, as rows with their test marks."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common import seeds
from common.data.holding_out import hold_out
from common.data.rows import Array, Rows
from common.errors import DataError
from common.tables.common_sums import CommonSums
from common.tables.decoding import DecodedTable, decoded
from common.tables.fitting import FittedTable
from common.tables.parting import parted
from common.tables.reading import RawTable, read_raw, refuse_one_name_twice, site_of
from common.tables.table_schema import AS_SHOWN, TableSchema, Writing
from common.tasks import TASKS, Task

__all__ = ["site_sums", "site_table", "tables_of_sites"]


def site_table(
    path: Path | RawTable,
    table_schema: TableSchema,
    *,
    site: str,
    test_fraction: float,
    writing: Writing = AS_SHOWN,
) -> tuple[Rows, FittedTable]:
    """Return the rows of a site's file, and how its cells became features.

    Rows are held out, and gaps filled, by this file and the site's name alone: what a simulation
    makes of it is what the real site does. What the site says of how it writes goes before what
    the schema says of it.

    Args:
        path: of the file; or what was read of it.
        table_schema: the federation's.
        site: whose it is.
        test_fraction: of its rows that are held out, unless the file marks them.
        writing: what the site says.

    Raises:
        DataError: a line for each problem of the file.
    """
    table, task, y, test = _read(path, table_schema, site, test_fraction, writing)
    fitted = FittedTable.of(table.schema, table.features, ~test)
    x = fitted.features(table.features)
    rows = Rows(
        x,
        y,
        task.class_names or table_schema.label.categories,
        test=test,
        group=table.group,
        columns=fitted.names,
        weight=table.weight,
        task=task,
        gaps=fitted.keeps_gaps,
    )
    return rows, fitted


def site_sums(
    path: Path | RawTable,
    table_schema: TableSchema,
    *,
    site: str,
    test_fraction: float,
    writing: Writing = AS_SHOWN,
) -> CommonSums:
    """Return what the training rows of a site's file add to the figures of all sites.

    Raises:
        DataError: a line for each problem of the file.
    """
    table, task, y, test = _read(path, table_schema, site, test_fraction, writing)
    return CommonSums.of(site, table_schema, table.features[~test], task.strata(y[~test]))


def tables_of_sites(
    paths: Sequence[Path], table_schema: TableSchema
) -> list[tuple[str, Path | RawTable]]:
    """Return the sites that files are of, each with its own table.

    A file is one site's, which goes by the file's name, unless it is the only one and the schema
    has a column of kind ``site``.

    Raises:
        ConfigError: two files of one name.
        DataError: a table whose rows do not say whose they are.
    """
    if len(paths) == 1 and table_schema.site is not None:
        return [*parted(read_raw(paths[0]), table_schema.site)]
    refuse_one_name_twice(paths)
    return [(site_of(path), path) for path in paths]


def _read(
    path: Path | RawTable,
    table_schema: TableSchema,
    site: str,
    test_fraction: float,
    writing: Writing,
) -> tuple[DecodedTable, Task, Array, NDArray[np.bool_]]:
    """Return a site's rows, what is learnt of them, their targets, and which are for testing."""
    raw = read_raw(path) if isinstance(path, Path) else path
    table = decoded(raw, table_schema, table_schema.writing_of(site, writing), site=site)
    assert table.label is not None  # it was asked for
    task = TASKS[table_schema.task]
    if table_schema.task == "regression":
        task, y = task.with_limits(table_schema.label.limits), table.label
    elif table.time is not None:
        y = np.stack([table.time, table.label], axis=1)
    else:
        y = table.label.astype(np.int64)
    rng = seeds.generator(0, "test-split", site)
    names = task.class_names or table_schema.label.categories
    bare = Rows(np.zeros((len(y), 1)), y, names, group=table.group, task=task)
    test = hold_out(bare, test_fraction, rng) if table.test is None else table.test
    if test.all():
        raise DataError(f"{raw.path}: no row is left for training")
    return table, task, y, test
