"""Data sets: one `Dataset` in memory, ready to train on, from a name or from a user's files."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from common import seeds
from common.data import flamby, readers
from common.data.data_folder import DataFolder
from common.data.named import NamedData
from common.data.own_data import read_csv, read_image_folder, read_npz
from common.data.preprocessing import Preprocessing
from common.data.rows import Array, IntArray, Rows, require_finite
from common.data.standardising import mean_and_scale, scaled
from common.data.synthetic import SyntheticSites, synthetic_rows
from common.errors import ConfigError, DataError, did_you_mean
from common.foreign.code import contained
from common.plugins import Table

DATASETS: Final[Table[NamedData]] = Table(
    "dataset",
    "coterie.datasets",
    {**readers.NAMED, **flamby.NAMED},
    of=NamedData,
    made_of=NamedData,
)

SYNTHETIC: Final = "synthetic"


def known() -> tuple[str, ...]:
    """Return the names of all data sets."""
    return (*DATASETS, SYNTHETIC)


def is_named_part(name: str) -> bool:
    """Return whether what a site has of a data set is read as a part of it, classes known."""
    return name in DATASETS and DATASETS[name].read_site is not None


def has_masks(name: object) -> bool:
    """Return whether the task of a data set, named or by its path, is to find masks."""
    return name in DATASETS and DATASETS[str(name)].has_masks


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows, standardised, with the natural client of each row where there is one.

    train_x (n, *input_shape) float32, C-contiguous; images have input_shape (channels, height,
    width), volumes (channels, depth, height, width), windows (channels, samples), tables
    (features,). train_y (n,) int64 in
    0..num_classes-1. train_owner (n,) int64 in 0..len(owner_names)-1, or None for all rows of the
    set. The test arrays likewise.
    """

    name: str
    train_x: NDArray[np.float32]
    train_y: IntArray
    test_x: NDArray[np.float32]
    test_y: IntArray
    num_classes: int
    class_names: tuple[str, ...]
    train_owner: IntArray | None = None
    test_owner: IntArray | None = None
    owner_names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    """Names of the features, where they are known."""
    train_masks: NDArray[np.bool_] | None = None
    """(n, depth, height, width): what is to be found in volumes, where that is the task."""
    test_masks: NDArray[np.bool_] | None = None
    preprocessing: Preprocessing | None = None
    """How the features were made of raw rows; None where there is no one way."""

    def __post_init__(self) -> None:
        if len(self.class_names) != self.num_classes:
            raise DataError(
                f"{self.name}: {len(self.class_names)} class names for {self.num_classes} classes"
            )
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            raise DataError(
                f"{self.name}: training rows {self.train_x.shape[1:]}, "
                f"test rows {self.test_x.shape[1:]}; they must have one shape"
            )
        self._check_part("train", self.train_x, self.train_y, self.train_owner)
        self._check_part("test", self.test_x, self.test_y, self.test_owner)
        self._check_masks("train", self.train_x, self.train_masks)
        self._check_masks("test", self.test_x, self.test_masks)

    def _check_part(self, part: str, x: Array, y: Array, owner: Array | None) -> None:
        what = f"{self.name}: {part}"
        if x.dtype != np.float32 or not x.flags.c_contiguous or x.ndim < 2 or not x.size:
            raise DataError(
                f"{what}_x is {x.dtype} of shape {x.shape}; expected C-contiguous float32 rows"
            )
        require_finite(x, f"{what}_x")
        _check_numbers(f"{what}_y", y, len(x), self.num_classes)
        if (owner is None) == bool(self.owner_names):
            raise DataError(f"{what}_owner and owner_names must be given together")
        if owner is not None:
            _check_numbers(f"{what}_owner", owner, len(x), len(self.owner_names))

    def _check_masks(self, part: str, x: Array, masks: Array | None) -> None:
        if (masks is None) != (x.ndim != 5):
            raise DataError(f"{self.name}: {part}_masks go with volumes, and only with them")
        if masks is None:
            return
        if masks.dtype != np.bool_ or masks.shape != (len(x), *x.shape[2:]):
            raise DataError(
                f"{self.name}: {part}_masks are {masks.dtype} of shape {masks.shape}; expected "
                f"one bool for each voxel of {x.shape}"
            )

    @property
    def train_targets(self) -> Array:
        """What a model is to say of each training row: its mask, or else its class."""
        return self.train_y if self.train_masks is None else self.train_masks

    @property
    def test_targets(self) -> Array:
        """The same of each test row."""
        return self.test_y if self.test_masks is None else self.test_masks

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one row: as ``train_x`` has it after its first axis."""
        return self.train_x.shape[1:]

    @property
    def schema(self) -> str:
        """A digest of the names of columns and classes, equal where a row means the same."""
        names = json.dumps([self.columns, self.class_names]).encode()
        return hashlib.blake2b(names, digest_size=8).hexdigest()


def _check_numbers(what: str, numbers: Array, rows: int, limit: int) -> None:
    if numbers.shape != (rows,) or numbers.dtype != np.int64:
        raise DataError(f"{what} is {numbers.dtype} {numbers.shape}; expected int64 ({rows},)")
    wrong = (numbers < 0) | (numbers >= limit)
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"{what}: row {row} holds {numbers[row]}; expected 0 to {limit - 1}")


def load_dataset(
    name_or_path: str,
    *,
    data_dir: Path | None = None,
    download: bool = False,
    label_column: str = "label",
    client_column: str = "",
    test_fraction: float = 0.2,
    sites: SyntheticSites | None = None,
    seed: int,
) -> Dataset:
    """Return a data set of `known`, or the one in an .npz, a .csv or an image folder.

    A name of the table wins over a file of that name. The columns are for .csv only; an empty
    `client_column` means no natural clients. Without a test split of its own, a data set gives up
    `test_fraction` (0 to 1, exclusive) of its rows, drawn from `seed`; otherwise both are unused.
    `sites` says what ``synthetic_rows`` is to be.

    Every feature of a table, and every channel of images, is standardised to mean 0 and standard
    deviation 1 over the training rows; what is constant there becomes 0.

    Raises:
        ConfigError: an unknown name, or a test fraction out of range.
        DataError: files that are missing, damaged or unfit.
    """
    if not 0 < test_fraction < 1:
        raise ConfigError(f"test-fraction={test_fraction}: choose a fraction between 0 and 1")
    located = locate(name_or_path)
    if located == SYNTHETIC:
        name, rows = located, synthetic_rows(sites or SyntheticSites(), seed)
    elif located in DATASETS:
        name, rows = located, _read_named(located, DataFolder(data_dir, download))
    else:
        path = Path(located)
        name, rows = path.stem, _read_own(path, label_column, client_column)
    rng = seeds.generator(seed, "test-split", name)
    test = _hold_out(rows, test_fraction, rng) if rows.test is None else rows.test
    return _standardised(name, rows, test)


def _read_named(name: str, folder: DataFolder) -> Rows:
    read = DATASETS[name].read
    if not DATASETS.is_foreign(name):
        return read(folder)
    with contained(f"dataset = {name!r}"):
        rows: object = read(folder)
        if not isinstance(rows, Rows):
            raise DataError(f"gives a {type(rows).__name__}, not coterie.Rows")
    return rows


def load_site_file(
    path: Path,
    *,
    name: str,
    site: str,
    label_column: str = "label",
    classes: tuple[str, ...] = (),
    test_fraction: float = 0.2,
) -> Dataset:
    """Return what one site holds: its own file, split and standardised by itself.

    Held-out rows are drawn by the site's id alone, so that they stay held out in every run; each
    feature is standardised over this site's training rows, of which nothing leaves the site.

    Args:
        path: .csv, .npz, a folder of images, or the site's part of a data set in `DATASETS`.
        name: what the federation calls the data; one of `DATASETS` may have a reader of parts.
        site: the site's id.
        label_column: of a .csv.
        classes: all classes of the federation in their common order; without them, the classes
            are those that occur here, sorted.
        test_fraction: held out per class, unless the file marks its test rows.

    Raises:
        DataError: a file that is missing, damaged or unfit, or holds another class.
    """
    rows = _of_classes(_read_site(path.absolute(), name, label_column), classes, path)
    rng = seeds.generator(0, "test-split", site)
    test = _hold_out(rows, test_fraction, rng) if rows.test is None else rows.test
    return _standardised(name, rows, test)


def class_names(path: Path, label_column: str = "label") -> tuple[str, ...]:
    """Return the sorted classes that occur in a .csv, an .npz or a folder of images.

    Raises:
        ConfigError: no such thing.
        DataError: a file that is missing, damaged or unfit.
    """
    return _read_own(Path(locate(str(path))), label_column, "").class_names


def _read_site(path: Path, name: str, label_column: str) -> Rows:
    read = DATASETS[name].read_site if name in DATASETS else None
    if read is None:
        return _read_own(Path(locate(str(path))), label_column, "")
    if not path.exists():
        raise DataError(f"dataset={name}: there is no file {path}")
    return read(path)


def _of_classes(rows: Rows, classes: tuple[str, ...], path: Path) -> Rows:
    """Return rows without owners, their classes numbered as in `classes` if that names any."""
    known = classes or rows.class_names
    for number in np.unique(rows.y):
        if rows.class_names[number] not in known:
            name = rows.class_names[number]
            raise DataError(f"{path}: unknown class {name!r}{did_you_mean(name, known)}")
    numbers = np.array([known.index(c) if c in known else -1 for c in rows.class_names], np.int64)
    return replace(rows, y=numbers[rows.y], class_names=known, owner=None, owner_names=())


def locate(name_or_path: str) -> str:
    """Return a known name as it is, a path as an absolute one; nothing is read.

    Raises:
        ConfigError: neither a known name nor anything that is there.
        DataError: a path to nothing, or to a file of another kind.
    """
    if name_or_path in DATASETS or name_or_path == SYNTHETIC:
        return name_or_path
    path = Path(name_or_path).expanduser().absolute()
    is_table = path.suffix.lower() in (".npz", ".csv")
    if path.is_dir() or (is_table and path.is_file()):
        return str(path)
    if is_table:
        raise DataError(f"dataset={name_or_path}: there is no file {path}")
    if path.exists():
        raise DataError(f"dataset={path} is no .npz, .csv or folder of images")
    raise ConfigError(f"dataset={name_or_path} is unknown{did_you_mean(name_or_path, known())}")


def _read_own(path: Path, label_column: str, client_column: str) -> Rows:
    if path.is_dir():
        return read_image_folder(path)
    if path.suffix.lower() == ".npz":
        return read_npz(path)
    return read_csv(path, label_column, client_column)


def _hold_out(rows: Rows, fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return test marks (n,): `fraction` of each owner's rows of each class, to less than one row.

    At least one row of every owner and class stays for training.
    """
    owner = np.zeros_like(rows.y) if rows.owner is None else rows.owner
    stratum = owner * len(rows.class_names) + rows.y
    sizes = np.bincount(stratum)
    # Rounding the running total, and not each stratum, keeps the overall number right.
    taken = np.diff(np.floor(np.cumsum(sizes) * fraction + 0.5).astype(np.int64), prepend=0)
    taken = np.minimum(taken, np.maximum(sizes - 1, 0))
    if not taken.any():
        raise DataError(
            f"test-fraction={fraction} of {len(rows.y)} rows in {np.count_nonzero(sizes)} groups "
            "of one class and client leaves no test row; raise it or bring more rows"
        )
    order = rng.permutation(len(stratum))
    order = order[np.argsort(stratum[order], kind="stable")]
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    test = np.zeros(len(order), np.bool_)
    test[order] = rank < np.repeat(taken, sizes)
    return test


def _standardised(name: str, rows: Rows, test: NDArray[np.bool_]) -> Dataset:
    parts = {"train": ~test, "test": test}
    for part, chosen in parts.items():
        if not chosen.any():
            raise DataError(f"{name}: no {part} row among {len(test)}; both parts need some")
    train = np.flatnonzero(~test)
    mean, scale = mean_and_scale(rows.x, train)
    owner, masks = rows.owner, rows.masks
    return Dataset(
        name=name,
        train_x=scaled(rows.x, train, mean, scale),
        train_y=rows.y[~test],
        test_x=scaled(rows.x, np.flatnonzero(test), mean, scale),
        test_y=rows.y[test],
        num_classes=len(rows.class_names),
        class_names=rows.class_names,
        train_owner=None if owner is None else owner[~test],
        test_owner=None if owner is None else owner[test],
        owner_names=rows.owner_names,
        columns=rows.columns,
        train_masks=None if masks is None else masks[~test],
        test_masks=None if masks is None else masks[test],
        preprocessing=Preprocessing(
            scaling="common",
            input_shape=rows.x.shape[1:],
            classes=rows.class_names,
            columns=rows.columns,
            mean=tuple(mean.ravel().tolist()),
            scale=tuple(scale.ravel().tolist()),
        ),
    )


def standardised_again(dataset: Dataset, train_x: Array, test_x: Array) -> Dataset:
    """Return a data set with other features in the place of its own, standardised like them.

    What was done to raw rows before is not known here, and so no preprocessing of the result.
    """
    train, test = (np.arange(len(x)) for x in (train_x, test_x))
    mean, scale = mean_and_scale(train_x, train)
    return replace(
        dataset,
        train_x=scaled(train_x, train, mean, scale),
        test_x=scaled(test_x, test, mean, scale),
        preprocessing=None,
    )
