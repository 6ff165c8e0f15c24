"""Tables of sites: one file by the federation's schema, as rows with their test marks."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common import seeds
from common.data.holding_out import hold_out
from common.data.rows import IntArray, Rows
from common.errors import DataError
from common.tables.common_sums import CommonSums
from common.tables.decoding import DecodedTable, decoded
from common.tables.fitting import FittedTable
from common.tables.measure import Measure
from common.tables.reading import read_raw
from common.tables.table_schema import AS_SHOWN, TableSchema, Writing

__all__ = ["site_sums", "site_table"]


def site_table(
    path: Path,
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

    Raises:
        DataError: a line for each problem of the file.
    """
    table, y, names, measure, test = _read(path, table_schema, site, test_fraction, writing)
    fitted = FittedTable.of(table.schema, table.features, ~test)
    x = fitted.features(table.features)
    rows = Rows(
        x,
        y,
        names,
        test=test,
        group=table.group,
        columns=fitted.names,
        quantities=table.label if measure else None,
        measure=measure,
        times=table.time,
        weights=table.weight,
    )
    return rows, fitted


def site_sums(
    path: Path,
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
    table, y, _, _, test = _read(path, table_schema, site, test_fraction, writing)
    return CommonSums.of(site, table_schema, table.features[~test], y[~test])


def _read(
    path: Path, table_schema: TableSchema, site: str, test_fraction: float, writing: Writing
) -> tuple[DecodedTable, IntArray, tuple[str, ...], Measure | None, NDArray[np.bool_]]:
    """Return a site's rows, their classes with names and measure, and which are for testing."""
    table = decoded(read_raw(path), table_schema, table_schema.writing_of(site, writing))
    assert table.label is not None  # it was asked for
    is_quantity = table_schema.task == "regression"
    measure = Measure(table_schema.label.limits) if is_quantity else None
    y = measure.classes(table.label) if measure else table.label.astype(np.int64)
    names = measure.class_names if measure else table_schema.label.categories
    rng = seeds.generator(0, "test-split", site)
    bare = Rows(np.zeros((len(y), 1)), y, names, group=table.group)
    test = hold_out(bare, test_fraction, rng) if table.test is None else table.test
    if test.all():
        raise DataError(f"{path}: no row is left for training")
    return table, y, names, measure, test
