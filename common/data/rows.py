"""Rows: a data set as read from its files, unscaled, and the numbers it may hold."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError
from common.tables.decimals import Decimal
from common.tables.guesses import Guess
from common.tasks import Classification, Task
from common.tasks.inputs import FEATURES, TOKENS, Inputs
from common.tasks.part import LARGEST, Array, IntArray, require_finite

__all__ = ["LARGEST", "Array", "IntArray", "Rows", "require_finite"]


@dataclass(frozen=True, eq=False)
class Rows:
    """A data set as read: unscaled, in the order of its files.

    x (n, *shape of a row) of the kind that is named; y (n, ...) as the task has it, of classes
    (n,) int64 in 0..len(class_names)-1; owner (n,) in 0..len(owner_names)-1, or None without
    natural clients; test (n,) marks the rows of a split that comes with the data, or None.
    """

    x: Array
    y: Array
    class_names: tuple[str, ...]
    """Of the classes, or of those that stand for what is learnt wherever sites are compared."""
    owner: IntArray | None = None
    owner_names: tuple[str, ...] = ()
    test: NDArray[np.bool_] | None = None
    group: IntArray | None = None
    """(n,) numbers from 0: rows of one number belong together, as those of one patient."""
    columns: tuple[str, ...] = ()
    """Names of the features, where the file has them."""
    decimal: Decimal = ""
    """The decimal mark that their numbers were read with, where they were texts and it was one."""
    weight: NDArray[np.float64] | None = None
    """(n,): how much each row counts in training, 0 or more; None: all alike."""
    kind: str = FEATURES
    """Of ``common.tasks.inputs.KINDS``: what a row is, which its axes do not say."""
    task: Task = field(default_factory=Classification)
    """What is learnt of the rows."""

    gaps: bool = False
    """Whether features may be missing, as NaN."""
    guesses: tuple[Guess, ...] = ()
    """What nobody said of the file, and what was taken for true."""

    def __post_init__(self) -> None:
        parts = (self.x, self.y, self.owner, self.test, self.group, self.weight)
        lengths = {len(part) for part in parts if part is not None}
        if len(lengths) != 1 or 0 in self.x.shape:
            raise DataError(
                f"{len(self.x)} rows of shape {self.x.shape[1:]} with {len(self.y)} labels: "
                "rows, labels, clients and test marks must be equally many, and at least one"
            )
        if self.kind == TOKENS and (self.x.dtype.kind not in "iu" or self.x.min() < 0):
            raise DataError(f"tokens are {self.x.dtype}; expected whole numbers of 0 or more")
        require_finite(self.x, "the data", gaps=self.gaps)
        self.task.check("the label", self.y, self.inputs, len(self.class_names))

    @property
    def inputs(self) -> Inputs:
        """What goes into a network of each row."""
        return Inputs(self.kind, self.x.shape[1:])

    @cached_property
    def strata(self) -> IntArray:
        """Class (n,) of each row, by which rows are held out."""
        return self.task.strata(self.y)
