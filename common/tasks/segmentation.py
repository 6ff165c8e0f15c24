"""Segmentation: which voxels of a volume belong to what is looked for."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from common.errors import DataError
from common.tasks.contract import Task
from common.tasks.inputs import VOLUMES, Inputs
from common.tasks.metrics import BUILT_IN
from common.tasks.part import Array, IntArray

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Segmentation", "dice_losses", "dice_scores"]


class Segmentation(Task):
    """Targets are masks (n, depth, height, width) bool; a network says a logit of every voxel."""

    name = "segmentation"
    targets_are = "masks"
    bring = "a data set of volumes with masks"
    score_name = "dice"
    score = BUILT_IN["dice"]
    score_label = "Dice"
    score_means = "mean Dice score of the masks found in held-out volumes, over all sites"
    in_percent = True
    loss_means = "1 - Dice"
    reported_metrics = ("dice",)
    compares_labels = False

    def check(self, what: str, y: Array, inputs: Inputs, num_classes: int) -> None:
        """Refuse what is no bool for each voxel of volumes."""
        if inputs.kind != VOLUMES:
            raise DataError(f"{what}: masks go with volumes, and rows are {inputs}")
        if y.dtype != np.bool_ or y.shape[1:] != inputs.shape[1:]:
            raise DataError(
                f"{what} is {y.dtype} {y.shape}; expected one bool for each voxel of {inputs}"
            )

    def strata(self, y: Array) -> IntArray:
        """Return 0 of each row: volumes are of one class."""
        return np.zeros(len(y), np.int64)

    def num_outputs(self, num_classes: int) -> int:
        """Return a logit for each thing that masks mark."""
        return num_classes

    def losses(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        """Return 1 - Dice of the probabilities of each volume."""
        return dice_losses(outputs, targets)

    def judged(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        """Return each volume's Dice score."""
        return dice_scores(outputs, targets)[:, None]

    def score_sums(self, judged: np.ndarray) -> np.ndarray:
        """Return the sum of the scores, and the number of volumes."""
        return np.array([judged.sum(), len(judged)], np.float64)

    def said(self, outputs: np.ndarray) -> np.ndarray:
        """Return the masks found, (n, depth, height, width)."""
        return np.asarray(outputs[:, 0] > 0, np.float64)

    def answers(self, outputs: np.ndarray, classes: Sequence[object]) -> Mapping[str, np.ndarray]:
        """Refuse: masks are no columns of a table."""
        raise DataError(
            "the run's rows are volumes, in which a model finds masks: use coterie.load_network"
        )


def dice_losses(logits: "Tensor", masks: "Tensor") -> "Tensor":
    """Return 1 - the Dice coefficient of probabilities and masks, (n,) in [0, 1].

    Milletari et al., "V-Net" (2016), with plain sums below the line, as FLamby has it.

    Args:
        logits: (n, 1, depth, height, width) of what the mask marks.
        masks: (n, depth, height, width), true inside.
    """
    return 1 - _dice(logits[:, 0].sigmoid(), masks)


def dice_scores(logits: "Tensor", masks: "Tensor") -> "Tensor":
    """Return the Dice coefficient of predicted and true masks, (n,) in [0, 1].

    Predicted is what is likelier inside than outside; two empty masks score 1.
    """
    return _dice((logits[:, 0] > 0).to(logits.dtype), masks)


def _dice(marked: "Tensor", masks: "Tensor") -> "Tensor":
    """Return 2 |marked and mask| / (|marked| + |mask|) of each volume; 1 where both are empty."""
    import torch

    marked, masks = marked.flatten(1), masks.flatten(1).to(marked.dtype)
    both, all_of_them = (marked * masks).sum(1), marked.sum(1) + masks.sum(1)
    # no 0/0: its gradient would be NaN even where it is not chosen
    share = 2 * both / all_of_them.clamp(min=torch.finfo(marked.dtype).tiny)
    return torch.where(all_of_them > 0, share, torch.ones_like(share))
