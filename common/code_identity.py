"""Code identity: a digest by which two machines tell whether they run the same Coterie.

The bundle that a run sends holds no code, so that a site runs what is installed there. Two machines
with one version can still differ, as checkouts do; a digest of the sources tells.
"""

import functools
import hashlib
import re
from importlib import metadata
from pathlib import Path

from common.config import Training
from common.piece_sources import sources

__all__ = ["code_of_run", "installed_code"]

_ROOT = Path(__file__).parents[1]
_READ = ("client_app", "common")
"""Packages of which a site runs code."""
_BELOW = re.compile(rb"\bfrom(\s+)coterie\.(client_app|common|deploy|server_app)\b")
"""An import as the wheel has it (hatch_build.py)."""


@functools.lru_cache(maxsize=1)
def installed_code() -> str:
    """Return the version that is installed, and 16 digits of a digest of what a site runs of it.

    The same for a wheel and a checkout with the same sources.
    """
    digest = hashlib.sha256()
    for package in _READ:
        for path in sorted((_ROOT / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(_ROOT).as_posix()}\0".encode())
                digest.update(_BELOW.sub(rb"from\1\2", path.read_bytes()))
    return f"{metadata.version('coterie')} sha256:{digest.hexdigest()[:16]}"


def code_of_run(settings: Training) -> list[str]:
    """Return what a run runs at its sites: Coterie's own code, then its pieces from elsewhere."""
    pieces = sources(settings, at_site=True).items()
    return [f"Coterie {installed_code()}", *(f"{piece}: {source}" for piece, source in pieces)]
