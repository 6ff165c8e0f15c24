"""Beijing air: hourly measurements of twelve stations over four years; PM2.5, also in six classes.

S. Chen, UCI Machine Learning Repository, data set 501; Zhang et al., Proc. R. Soc. A 473 (2017).
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from common.data.data_folder import DataFolder
from common.data.named import NamedData
from common.data.rows import Rows
from common.tables import cells
from common.tables.decoding import decoded
from common.tables.fitting import FittedTable
from common.tables.measure import Measure
from common.tables.reading import read_raw
from common.tables.table_schema import TableSchema
from common.tasks import Regression

__all__ = ["NAMED", "STATIONS"]

STATIONS = (
    *("Aotizhongxin", "Changping", "Dingling", "Dongsi", "Guanyuan", "Gucheng"),
    *("Huairou", "Nongzhanguan", "Shunyi", "Tiantan", "Wanliu", "Wanshouxigong"),
)

# Upper ends in µg/m³ of China's index of air quality for PM2.5: HJ 633-2012, Table 1.
_MEASURE = Measure((35.0, 75.0, 115.0, 150.0, 250.0))
_CLASSES = ("excellent", "good", "light", "moderate", "heavy", "severe")

_GASES_AND_WEATHER = ("SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN", "WSPM")
_WINDS = (
    *("N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE"),
    *("S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW"),
)
_FIRST_TEST_MONTH = (2016, 3)  # the last of the four years


def _schema() -> TableSchema:
    """Return how a station's file is read: PM10, which contains PM2.5, is no feature."""
    numbers = [
        {"name": name, "kind": "number", "missing": ["NA"], "fill": "median"}
        for name in _GASES_AND_WEATHER
    ]
    wind = {"name": "wd", "kind": "category", "categories": _WINDS, "missing": ["NA"]}
    label = {"name": "PM2.5", "kind": "label", "missing": ["NA"], "fill": "drop-row"}
    times = [{"name": name, "kind": "number"} for name in ("month", "hour")]
    limits = {"limits": list(_MEASURE.limits)}
    columns = [*times, *numbers, wind | {"fill": "category"}, label | limits]
    return TableSchema.of({"task": "regression", "columns": columns}, source="beijing-air")


def _station(path: Path) -> Rows:
    """Return one station's hours with a known PM2.5; its gaps hold its own training median."""
    schema = _schema()
    raw = read_raw(path)
    table = decoded(raw, schema)
    assert table.label is not None  # it was asked for
    year, month = (cells.numbers(raw.column(name))[table.rows] for name in ("year", "month"))
    first_year, first_month = _FIRST_TEST_MONTH
    test = 12 * year + month >= 12 * first_year + first_month
    fitted = FittedTable.of(schema, table.features, ~test)
    return Rows(
        fitted.features(table.features),
        table.label,
        _CLASSES,
        test=test,
        columns=fitted.names,
        task=Regression(_MEASURE),
    )


def _stations(folder: DataFolder) -> Rows:
    """Return all stations, from ``BeijingAir/PRSA_Data_<station>_20130301-20170228.csv``."""
    names = [f"BeijingAir/PRSA_Data_{name}_20130301-20170228.csv" for name in STATIONS]
    parts = [_station(path) for path in folder.files("beijing-air", names)]
    return Rows(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.y for part in parts]),
        _CLASSES,
        np.repeat(np.arange(len(parts)), [len(part.y) for part in parts]),
        STATIONS,
        np.concatenate([part.test for part in parts if part.test is not None]),
        columns=parts[0].columns,
        task=Regression(_MEASURE),
    )


NAMED: Mapping[str, NamedData] = {"beijing-air": NamedData(_stations, _station, by_centre=True)}
"""The data set of this file, by its name in the settings."""
