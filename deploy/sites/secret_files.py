"""Secret files, that only their owner may read, and files for all, written whole or not at all."""

import os
import secrets
from pathlib import Path

from common import machine


def write_secret(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, at no moment anybody else."""
    _write(path, data, 0o600)


def write_public(path: Path, data: bytes) -> None:
    """Write a file that everybody can read."""
    _write(path, data, 0o644)


def private_folder(path: Path) -> Path:
    """Return a folder that only its owner can enter; it is made if need be."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def _write(path: Path, data: bytes, mode: int) -> None:
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    machine.sync_folder(path.parent)
