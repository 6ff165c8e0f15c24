"""Data sets in memory: standardised rows to train on and to test with, checked at birth."""

import hashlib
import json
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from common.data.preprocessing import Preprocessing
from common.data.rows import Array, IntArray, Rows, require_finite
from common.data.standardising import mean_and_scale, scaled
from common.errors import DataError
from common.tables.guesses import Guess
from common.tables.measure import Measure

__all__ = ["Dataset", "standardised", "standardised_again"]


Figures = tuple[NDArray[np.float64], NDArray[np.float64]]


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
    train_quantities: NDArray[np.float32] | None = None
    """(n,): what is to be learnt where it is a number, as its measure scales it; train_y is then
    its class."""
    test_quantities: NDArray[np.float32] | None = None
    measure: Measure | None = None
    """Of the quantities; None: classes are learnt, or masks."""
    train_times: NDArray[np.float64] | None = None
    """(n,): how long each row was followed, where that is the task; train_y is then 1 where the
    event ended it."""
    test_times: NDArray[np.float64] | None = None
    train_weights: NDArray[np.float64] | None = None
    """(n,): how much each training row counts, 0 or more; None: all alike."""
    train_group: IntArray | None = None
    """(n,): training rows of one number belong together, as those of one patient."""
    test_group: IntArray | None = None
    """(n,): the same of test rows."""
    preprocessing: Preprocessing | None = None
    """How the features were made of raw rows; None where there is no one way."""
    guesses: tuple[Guess, ...] = ()
    """What nobody said of the files, and what was taken for true."""

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
        self._check_groups("training", self.train_x, self.train_group)
        self._check_groups("test", self.test_x, self.test_group)
        self._check_masks("train", self.train_x, self.train_masks)
        self._check_masks("test", self.test_x, self.test_masks)
        self._check_quantities("train", self.train_y, self.train_quantities)
        self._check_quantities("test", self.test_y, self.test_quantities)
        self._check_times("train", self.train_y, self.train_times)
        self._check_times("test", self.test_y, self.test_times)
        self._check_weights()

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

    def _check_groups(self, part: str, x: Array, group: Array | None) -> None:
        if group is not None and group.shape != (len(x),):
            raise DataError(f"{self.name}: {group.shape} groups of {len(x)} {part} rows")

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

    def _check_quantities(self, part: str, y: Array, quantities: Array | None) -> None:
        if (quantities is None) != (self.measure is None):
            raise DataError(f"{self.name}: {part}_quantities and measure must be given together")
        if quantities is None:
            return
        if quantities.dtype != np.float32 or quantities.shape != y.shape:
            raise DataError(
                f"{self.name}: {part}_quantities are {quantities.dtype} of shape "
                f"{quantities.shape}; expected float32 {y.shape}"
            )
        require_finite(quantities, f"{self.name}: {part}_quantities")

    def _check_times(self, part: str, y: Array, times: Array | None) -> None:
        if times is None:
            return
        if times.shape != y.shape or times.dtype != np.float64 or self.num_classes != 2:
            raise DataError(
                f"{self.name}: {part}_times are {times.dtype} of shape {times.shape}; expected "
                f"float64 {y.shape}, and two classes"
            )
        require_finite(times, f"{self.name}: {part}_times")
        if times.min() < 0:
            raise DataError(f"{self.name}: {part}_times holds {times.min()}; expected 0 or more")

    def _check_weights(self) -> None:
        weights = self.train_weights
        if weights is None:
            return
        if weights.shape != self.train_y.shape or weights.dtype != np.float64:
            raise DataError(
                f"{self.name}: train_weights are {weights.dtype} of shape {weights.shape}; "
                f"expected float64 {self.train_y.shape}"
            )
        require_finite(weights, f"{self.name}: train_weights")
        if weights.min() < 0 or not weights.any():
            raise DataError(
                f"{self.name}: the training rows' weights are from {weights.min():g} to "
                f"{weights.max():g}; expected 0 or more, and one above 0"
            )

    @property
    def task(self) -> str:
        """What is learnt: ``classification``, ``regression`` or ``survival``; masks are classes."""
        if self.train_times is not None:
            return "survival"
        return "classification" if self.measure is None else "regression"

    @property
    def train_targets(self) -> Array:
        """What a model is to say of each training row: its mask, quantity, or else class.

        Of survival (n, 2) float64: how long it was followed, and whether the event ended that.
        """
        if self.train_times is not None:
            return np.stack([self.train_times, self.train_y], axis=1)
        return _first_of(self.train_masks, self.train_quantities, self.train_y)

    @property
    def test_targets(self) -> Array:
        """The same of each test row."""
        if self.test_times is not None:
            return np.stack([self.test_times, self.test_y], axis=1)
        return _first_of(self.test_masks, self.test_quantities, self.test_y)

    @property
    def num_outputs(self) -> int:
        """How many numbers a network says of a row."""
        return self.num_classes if self.task == "classification" else 1

    def of_classes(self) -> "Dataset":
        """Return the same with the classes to be learnt, even where there are quantities."""
        if self.task == "classification":
            return self
        made = self.preprocessing
        return replace(
            self,
            train_quantities=None,
            test_quantities=None,
            train_times=None,
            test_times=None,
            measure=None,
            preprocessing=made and made.model_copy(update={"limits": None, "risk": None}),
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one row: as ``train_x`` has it after its first axis."""
        return self.train_x.shape[1:]

    @property
    def schema(self) -> str:
        """A digest of the names of columns and classes, equal where a row means the same."""
        names = json.dumps([self.columns, self.class_names]).encode()
        return hashlib.blake2b(names, digest_size=8).hexdigest()


def _first_of(*targets: Array | None) -> Array:
    return next(target for target in targets if target is not None)


def _check_numbers(what: str, numbers: Array, rows: int, limit: int) -> None:
    if numbers.shape != (rows,) or numbers.dtype != np.int64:
        raise DataError(f"{what} is {numbers.dtype} {numbers.shape}; expected int64 ({rows},)")
    wrong = (numbers < 0) | (numbers >= limit)
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"{what}: row {row} holds {numbers[row]}; expected 0 to {limit - 1}")


def standardised(
    name: str, rows: Rows, test: NDArray[np.bool_], figures: Figures | None = None
) -> Dataset:
    """Return rows as a data set, each feature by the mean and deviation of its training rows.

    ``figures`` are mean and 1 / deviation of each feature, where all sites share them.

    Raises:
        DataError: no row is for training, or none for testing.
    """
    parts = {"train": ~test, "test": test}
    for part, chosen in parts.items():
        if not chosen.any():
            raise DataError(f"{name}: no {part} row among {len(test)}; both parts need some")
    train = np.flatnonzero(~test)
    mean, scale = figures or mean_and_scale(rows.x, train)
    owner, masks, measure = rows.owner, rows.masks, rows.measure
    quantities = None
    if measure is not None and rows.quantities is not None:
        quantities = measure.scaled(rows.quantities)
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
        train_quantities=None if quantities is None else quantities[~test],
        test_quantities=None if quantities is None else quantities[test],
        train_times=None if rows.times is None else rows.times[~test],
        test_times=None if rows.times is None else rows.times[test],
        train_weights=None if rows.weights is None else rows.weights[~test],
        measure=measure,
        train_group=None if rows.group is None else rows.group[~test],
        test_group=None if rows.group is None else rows.group[test],
        guesses=rows.guesses,
        preprocessing=Preprocessing(
            scaling="common",
            input_shape=rows.x.shape[1:],
            classes=rows.class_names,
            columns=rows.columns,
            decimal=rows.decimal or None,
            mean=tuple(mean.ravel().tolist()),
            scale=tuple(scale.ravel().tolist()),
            limits=None if measure is None else measure.limits,
            risk=None if rows.times is None else True,
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
