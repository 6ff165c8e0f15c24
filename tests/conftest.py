"""Fixtures shared by the tests."""

import os
from pathlib import Path

import pytest
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import HealthCheck, settings

# The same examples every time, and none refused for being slow: a test that failed must have failed
# because of what was changed, not by the examples of the day or the load of the machine. To look
# for others: pytest --hypothesis-profile=search
_UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **_UNHURRIED)
settings.register_profile("search", **_UNHURRIED)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    default = Path(__file__).parents[1] / ".." / "shared" / "data"
    folder = Path(os.environ.get("COTERIE_TEST_DATA", default)).resolve()
    if not folder.is_dir():
        pytest.skip(f"no real data sets in {folder}; COTERIE_TEST_DATA names another folder")
    return folder


@pytest.fixture
def task_identity(monkeypatch):
    """What Flower's Message needs to know of the process it is made in."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
