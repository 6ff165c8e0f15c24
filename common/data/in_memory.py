"""Data sets in memory: standardised rows to train on and to test with, checked at birth."""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from common.data.preprocessing import Preprocessing
from common.data.rows import Array, IntArray, Rows, require_finite
from common.data.standardising import extremes, mean_and_scale, scaled
from common.errors import DataError
from common.tables.guesses import Guess
from common.tasks import Classification, Task
from common.tasks.contract import check_classes
from common.tasks.inputs import FEATURES, TOKENS, Inputs
from common.tasks.part import Part

__all__ = ["Dataset", "standardised", "standardised_again"]


Figures = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test rows, ready for a network, and what is to be learnt of them.

    Rows of a part are float32, standardised and C-contiguous, token ids int64; a part's ``y`` is
    as the task has it.
    """

    name: str
    train: Part
    test: Part
    task: Task
    class_names: tuple[str, ...]
    """Of the task's strata: the classes, or those that stand for what is learnt wherever sites are
    compared."""
    kind: str = FEATURES
    """What a row is, of ``common.tasks.inputs.KINDS``."""
    owner_names: tuple[str, ...] = ()
    """Of the natural clients, whose numbers the parts hold; none: there are none."""
    columns: tuple[str, ...] = ()
    """Names of the features, where they are known."""
    preprocessing: Preprocessing | None = None
    """How the features were made of raw rows; None where there is no one way."""
    site_preprocessing: tuple[tuple[str, Preprocessing], ...] = ()
    """(owner, how its rows were made) where several sites' files are here and each has its own."""
    guesses: tuple[Guess, ...] = ()
    """What nobody said of the files, and what was taken for true."""
    gaps: bool = False
    """Whether features may be missing, as NaN."""

    def __post_init__(self) -> None:
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            raise DataError(
                f"{self.name}: training rows {self.train.x.shape[1:]}, "
                f"test rows {self.test.x.shape[1:]}; they must have one shape"
            )
        for name, part in (("train", self.train), ("test", self.test)):
            self._check_part(f"{self.name}: {name}", part)

    def _check_part(self, what: str, part: Part) -> None:
        x, inputs = part.x, self.inputs
        if x.dtype != inputs.dtype or not x.flags.c_contiguous or not x.size:
            raise DataError(
                f"{what}.x is {x.dtype} of shape {x.shape}; expected C-contiguous "
                f"{np.dtype(inputs.dtype)} rows"
            )
        require_finite(x, f"{what}.x", gaps=self.gaps)
        if self.kind == TOKENS and x.min() < 0:
            raise DataError(f"{what}.x holds the token {x.min()}; expected 0 or more")
        self.task.check(f"{what}.y", part.y, inputs, self.num_classes)
        if (part.owner is None) == bool(self.owner_names):
            raise DataError(f"{what}.owner and owner_names must be given together")
        if part.owner is not None:
            check_classes(f"{what}.owner", part.owner, len(self.owner_names))

    @property
    def num_classes(self) -> int:
        """How many strata there are: the classes, where those are learnt."""
        return len(self.class_names)

    @property
    def inputs(self) -> Inputs:
        """What goes into a network of each row."""
        return Inputs(self.kind, self.train.x.shape[1:])

    @property
    def num_outputs(self) -> int:
        """How many numbers a network says of a row."""
        return self.task.num_outputs(self.num_classes)

    @cached_property
    def train_targets(self) -> Array:
        """What a network learns of each training row, (n, ...)."""
        return self.task.targets(self.train.y)

    @cached_property
    def test_targets(self) -> Array:
        """The same of each test row."""
        return self.task.targets(self.test.y)

    @cached_property
    def train_strata(self) -> IntArray:
        """Class (n,) of each training row, by which rows are dealt and sites are compared."""
        return self.task.strata(self.train.y)

    @cached_property
    def test_strata(self) -> IntArray:
        """The same of each test row."""
        return self.task.strata(self.test.y)

    def of_classes(self) -> "Dataset":
        """Return the same with the strata's classes to be learnt."""
        if self.task.has_classes:
            return self
        made = self.preprocessing
        return replace(
            self,
            train=replace(self.train, y=self.train_strata),
            test=replace(self.test, y=self.test_strata),
            task=Classification(),
            preprocessing=made and made.of_task(Classification()),
        )

    @property
    def schema(self) -> str:
        """A digest of the names of columns and classes, equal where a row means the same."""
        names = json.dumps([self.columns, self.class_names]).encode()
        return hashlib.blake2b(names, digest_size=8).hexdigest()


def standardised(
    name: str, rows: Rows, test: NDArray[np.bool_], figures: Figures | None = None
) -> Dataset:
    """Return rows as a data set, each feature by the mean and deviation of its training rows.

    ``figures`` are mean and 1 / deviation of each feature, where all sites share them. Tokens stay
    what they are.

    Raises:
        DataError: no row is for training, or none for testing.
    """
    for part, chosen in {"train": ~test, "test": test}.items():
        if not chosen.any():
            raise DataError(f"{name}: no {part} row among {len(test)}; both parts need some")
    train_rows, test_rows = np.flatnonzero(~test), np.flatnonzero(test)
    low, high = np.empty(0), np.empty(0)
    if rows.kind == TOKENS:
        mean, scale = np.empty(0), np.empty(0)
        parts: list[Array] = [rows.x[part].astype(np.int64) for part in (train_rows, test_rows)]
    else:
        mean, scale = figures or mean_and_scale(rows.x, train_rows)
        if rows.columns:
            low, high = extremes(rows.x, train_rows)
        parts = [scaled(rows.x, part, mean, scale) for part in (train_rows, test_rows)]
    train_x, test_x = parts
    return Dataset(
        name=name,
        train=_part(rows, train_rows, train_x, rows.weight),
        test=_part(rows, test_rows, test_x, None),
        task=rows.task,
        class_names=rows.class_names,
        kind=rows.kind,
        owner_names=rows.owner_names,
        columns=rows.columns,
        guesses=rows.guesses,
        gaps=rows.gaps,
        preprocessing=Preprocessing(
            scaling="common",
            input_kind=rows.kind,
            input_shape=rows.x.shape[1:],
            classes=rows.class_names,
            columns=rows.columns,
            decimal=rows.decimal or None,
            mean=tuple(mean.ravel().tolist()),
            scale=tuple(scale.ravel().tolist()),
            low=tuple(low.tolist()),
            high=tuple(high.tolist()),
        ).of_task(rows.task),
    )


def _part(rows: Rows, chosen: IntArray, x: Array, weight: Array | None) -> Part:
    return Part(
        x=x,
        y=rows.y[chosen],
        owner=None if rows.owner is None else rows.owner[chosen],
        group=None if rows.group is None else rows.group[chosen],
        weight=None if weight is None else weight[chosen],
    )


def standardised_again(dataset: Dataset, train_x: Array, test_x: Array) -> Dataset:
    """Return a data set with other features in the place of its own, standardised like them.

    What was done to raw rows before is not known here, and so no preprocessing of the result.
    """
    train_rows, test_rows = (np.arange(len(x)) for x in (train_x, test_x))
    mean, scale = mean_and_scale(train_x, train_rows)
    return replace(
        dataset,
        train=replace(dataset.train, x=scaled(train_x, train_rows, mean, scale)),
        test=replace(dataset.test, x=scaled(test_x, test_rows, mean, scale)),
        preprocessing=None,
    )
