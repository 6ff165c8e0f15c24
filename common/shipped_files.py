"""Files that lie beside modules and are no Python: C, and the templates of pages."""

import sys
from pathlib import Path

from common.errors import ConfigError

__all__ = ["beside"]

_ROOT = Path(__file__).parents[1]


def beside(module: str, name: str) -> Path:
    """Return the path of a file or folder in the folder of a module, whose ``__file__`` is given.

    Flower's bundles take Python and nothing else of what is shipped: where the module came in one,
    the path is that in the installed copy of Coterie, a wheel's or a checkout's.

    Raises:
        ConfigError: it is nowhere.
    """
    place = Path(module).parent / name
    part = place.relative_to(_ROOT)
    installed = (Path(entry, *top, part) for entry in sys.path for top in ((), ("coterie",)))
    for path in (place, *installed):
        if path.exists():
            return path
    raise ConfigError(f"{part}: neither in {_ROOT} nor in an installed Coterie; install it anew")
