"""Objects for Flower's own runtimes: the two apps, and the base of the strategies.

A Flower app of one's own can name them in its ``pyproject.toml``, as
``serverapp = "coterie.flower:server_app"``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from coterie import _HERE

if TYPE_CHECKING:  # what _HOMES says, for those who check types
    from client_app.app import app as client_app
    from server_app.app import app as server_app
    from server_app.strategies.base import FederatedTraining

# Flower reads this list where it looks for an app without importing it.
__all__ = ["FederatedTraining", "client_app", "server_app"]

_HOMES = {
    "FederatedTraining": ("server_app.strategies.base", "FederatedTraining"),
    "client_app": ("client_app.app", "app"),
    "server_app": ("server_app.app", "app"),
}
"""Module and name there of each."""


if not TYPE_CHECKING:  # else every misspelt name would have a type

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home, there = _HOMES[name]
        return getattr(import_module(_HERE + home), there)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
