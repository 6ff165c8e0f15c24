"""Plugin of pytest: the tests' ``common``, ``deploy`` and so on are those of the installed wheel.

``pytest -p of_the_wheel``, with this folder on PYTHONPATH, in an environment that has the wheel: a
test that imports ``common.errors`` gets ``coterie.common.errors``, the very same module.
"""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path

import coterie
from coterie import common

BELOW = ("common", "client_app", "server_app", "deploy")


class Below(MetaPathFinder, Loader):
    """Finds a module of ours below ``coterie``."""

    def find_spec(self, name, path, target=None):
        return ModuleSpec(name, self) if name.partition(".")[0] in BELOW else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        # Whoever imports it is given what stands under its name in the end.
        sys.modules[module.__name__] = importlib.import_module(f"coterie.{module.__name__}")


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.get_closest_marker("checkout") is None]


for package in (coterie, common):
    assert package.__file__.startswith(sys.prefix), f"{package.__file__} is not the wheel's"
sys.meta_path.insert(0, Below())
sys.path.append(str(Path(__file__).parent.parent))  # for benchmarks, which nobody installs
