"""Prepared data: a site's own rows, read once and opened instantly.

Flower starts a new client process for every message. The site's file is therefore read, split and
standardised once, and kept in ``state-dir`` as plain arrays that a process maps into its memory. A
change of the file is taken in when the site is started again, never in the middle of a run.
"""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from client_app.site_config import SiteConfig
from client_app.site_state import FolderKeeper
from common.data.datasets import Dataset, load_site_file
from common.data.preprocessing import Preprocessing
from common.tables.guesses import Guess
from common.tasks.part import Part

_POINTER = "prepared.json"  # which folder holds the data, and of which words it was made
_FACTS = "facts.json"
_PREPROCESSING = "preprocessing.json"
_PARTS = "train", "test"
_ARRAYS = "x", "y", "group", "weight"
_FORMAT = 9  # raised when the same file would be prepared differently


def open_dataset(config: SiteConfig) -> Dataset:
    """Return a site's data as it was prepared, read-only arrays on disk; prepare it if need be."""
    keeper = FolderKeeper.open(Path(config.state_dir))
    with keeper.locked():
        folder = _prepared(keeper, config) or _prepare(keeper, config)
        return _opened(folder)


def prepare(config: SiteConfig) -> Dataset:
    """Return a site's data as its file holds it now; prepared anew if the file has changed."""
    keeper = FolderKeeper.open(Path(config.state_dir))
    with keeper.locked():
        return _opened(_prepare(keeper, config))


def load(config: SiteConfig) -> Dataset:
    """Return a site's data as its file holds it now, read anew and kept nowhere."""
    return load_site_file(
        Path(config.data_path),
        name=config.dataset,
        site=config.site,
        label_column=config.label_column,
        group_column=config.group_column,
        split_column=config.split_column,
        classes=config.class_names,
        table_schema=Path(config.table_schema) if config.table_schema else None,
        test_fraction=config.test_fraction,
        writing=config.writing,
    )


def _words(config: SiteConfig) -> str:
    """Return what decides, beside the file's content, how it is prepared."""
    return json.dumps(
        [
            _FORMAT,
            config.site,
            config.dataset,
            os.path.abspath(config.data_path),
            config.label_column,
            config.group_column,
            config.split_column,
            config.class_names,
            config.table_schema,
            config.test_fraction,
            config.date_order,
            config.decimal,
        ]
    )


def _prepared(keeper: FolderKeeper, config: SiteConfig) -> Path | None:
    """Return the folder that was prepared under the same words, if there is one."""
    piece = keeper.read(_POINTER)
    pointer = {} if piece is None else json.loads(piece)
    return keeper.folder / pointer["folder"] if pointer.get("words") == _words(config) else None


def _prepare(keeper: FolderKeeper, config: SiteConfig) -> Path:
    words = _words(config)
    files = [path for path in (config.data_path, config.table_schema) if path]
    text = f"{words}{[_stamp(Path(path)) for path in files]}"
    folder = keeper.folder / f"data-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
    if not folder.is_dir():
        _write(load(config), folder)
    pointer = {"words": words, "folder": folder.name}
    keeper.write(_POINTER, json.dumps(pointer).encode())
    for other in keeper.folder.glob("data-*"):
        if other != folder:
            shutil.rmtree(other)
    return folder


def _stamp(path: Path) -> list[tuple[str, int, int]]:
    """Return name, size and time of change of a file, or of each file in a folder."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    states = [(str(file), file.stat()) for file in files if file.exists()]
    return [(name, state.st_size, state.st_mtime_ns) for name, state in states]


def _write(dataset: Dataset, folder: Path) -> None:
    """Write a data set's folder under another name, sync it and rename it."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700)
    for which, name in itertools.product(_PARTS, _ARRAYS):
        array = getattr(getattr(dataset, which), name)
        if array is not None:
            with _synced(part / f"{which}-{name}.npy") as file:
                np.save(file, array, allow_pickle=False)
    facts = {
        "name": dataset.name,
        "classes": dataset.class_names,
        "columns": dataset.columns,
        "guesses": [vars(guess) for guess in dataset.guesses],
    }
    with _synced(part / _FACTS) as file:
        file.write(json.dumps(facts).encode())
    assert dataset.preprocessing is not None  # what is read from a site's file has one
    with _synced(part / _PREPROCESSING) as file:
        file.write(dataset.preprocessing.to_json().encode())
    part.rename(folder)


@contextlib.contextmanager
def _synced(path: Path) -> Iterator[BinaryIO]:
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _opened(folder: Path) -> Dataset:
    facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    made = folder / _PREPROCESSING
    preprocessing = Preprocessing.parse(made.read_bytes(), source=str(made))
    train, test = (_part(folder, which) for which in _PARTS)
    return Dataset(
        name=facts["name"],
        train=train,
        test=test,
        task=preprocessing.learnt,
        class_names=tuple(facts["classes"]),
        kind=preprocessing.input_kind,
        columns=tuple(facts["columns"]),
        guesses=tuple(Guess(**guess) for guess in facts["guesses"]),
        preprocessing=preprocessing,
        gaps=preprocessing.table is not None and preprocessing.table.keeps_gaps,
    )


def _part(folder: Path, which: str) -> Part:
    # The view drops NumPy's memmap class, which would slow down every slice.
    arrays = {
        name: np.load(file, mmap_mode="r", allow_pickle=False).view(np.ndarray)
        for name in _ARRAYS
        if (file := folder / f"{which}-{name}.npy").exists()
    }
    return Part(**arrays)
