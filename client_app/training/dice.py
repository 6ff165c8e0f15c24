"""Dice's coefficient, how well a mask is met: as a loss to train on and as a score to report."""

import torch
from torch import Tensor

__all__ = ["losses", "scores"]


def losses(logits: Tensor, masks: Tensor) -> Tensor:
    """Return 1 - the Dice coefficient of probabilities and masks, (n,) in [0, 1].

    Milletari et al., "V-Net" (2016), with plain sums below the line, as FLamby has it.

    Args:
        logits: (n, 1, depth, height, width) of what the mask marks.
        masks: (n, depth, height, width), true inside.
    """
    return 1 - _dice(torch.sigmoid(logits[:, 0]), masks)


def scores(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the Dice coefficient of predicted and true masks, (n,) in [0, 1].

    Predicted is what is likelier inside than outside; two empty masks score 1.
    """
    return _dice((logits[:, 0] > 0).to(logits.dtype), masks)


def _dice(found: Tensor, masks: Tensor) -> Tensor:
    """Return 2 |found and mask| / (|found| + |mask|) of each volume; 1 where both are empty."""
    found, masks = found.flatten(1), masks.flatten(1).to(found.dtype)
    both, all_of_them = (found * masks).sum(1), found.sum(1) + masks.sum(1)
    # no 0/0: its gradient would be NaN even where it is not chosen
    share = 2 * both / all_of_them.clamp(min=torch.finfo(found.dtype).tiny)
    return torch.where(all_of_them > 0, share, torch.ones_like(share))
