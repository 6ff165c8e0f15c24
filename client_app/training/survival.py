"""Survival: Cox's partial likelihood of rows that were followed for some time, and who goes first.

Rows are (n, 2): how long each was followed, and 1 where the event ended that. A network says one
number of a row, its log hazard but for a constant: the larger, the sooner the event. A row is
compared with those of its own site alone, so the sites need no common clock and tell no times.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from common.errors import DataError
from common.task_metrics import concordance

__all__ = ["cox_losses", "losses_and_concordance", "require_events"]


def cox_losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return each row's part (n,) of Cox's loss, of which the mean is that over the events.

    Breslow's approximation for equal times (Breslow 1974): the rows at risk at a time are all that
    were followed as long or longer, its own events included.

    >>> import math
    >>> even = cox_losses(torch.zeros(3, 1), torch.tensor([[1.0, 1], [2, 1], [3, 0]]))
    >>> round(even.mean().item(), 6) == round((math.log(3) + math.log(2)) / 2, 6)
    True

    Args:
        outputs: (n, 1) what a network says of n rows of one site.
        labels: (n, 2) their times and events.
    """
    times, events = labels[:, 0], labels[:, 1]
    order = torch.argsort(times, descending=True, stable=True)
    sums = torch.logcumsumexp(outputs[order, 0], dim=0)
    # of rows with one time all are at risk: the last of them in this order has seen them all
    _, tie = torch.unique_consecutive(times[order], return_inverse=True)
    last = torch.searchsorted(tie, tie, right=True) - 1
    at_risk = torch.empty_like(sums).index_put((order,), sums[last])
    share = len(labels) / events.sum().clamp(min=1)
    weights = (events * share).to(outputs.dtype)
    return weights * (at_risk - outputs[:, 0])


def losses_and_concordance(
    outputs: Tensor, labels: Tensor, sizes: Sequence[int]
) -> list[tuple[Tensor, float]]:
    """Return rows' losses, and the concordance in [0, 1], of consecutive sites' rows.

    Raises:
        DataError: a site without two rows of which one is known to have gone first.
    """
    found = []
    parts = (torch.split(rows, [*sizes]) for rows in (outputs, labels))
    for said, known in zip(*parts, strict=True):
        first, pairs = concordance(said[:, 0].double().cpu().numpy(), known.cpu().numpy())
        if not pairs:
            raise DataError(
                f"of {len(known)} rows no two can be compared: there is no event with a row that "
                "was followed for longer; bring more rows, or raise test-fraction"
            )
        found.append((cox_losses(said, known), float(first / pairs)))
    return found


def require_events(labels: Tensor) -> None:
    """Raise :class:`DataError` where no event can be learnt from."""
    if not bool(labels[:, 1].any()):
        raise DataError(f"{len(labels)} training rows without one event: nothing can be learnt")
