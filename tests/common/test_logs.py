"""Log lines: what Flower says of an error of ours is one line, and all of any other error."""

import logging

import pytest

from common import logs
from common.errors import ConfigError


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConfigError("seed = -1: must be 0 or more"), ": seed = -1: must be 0 or more"),
        (ValueError("broken"), "\nValueError: broken"),
    ],
)
def test_flower_tells_an_error_of_ours_in_one_line_and_any_other_whole(error, told, caplog):
    logs.show_reasons_only()
    logs.show_reasons_only()  # as two runs of one process do
    logging.getLogger("flwr").error("%s raised an exception", "ServerApp", exc_info=error)
    [record] = caplog.records
    assert caplog.handler.format(record).endswith(f"ServerApp raised an exception{told}")
