"""Row orders: in which order a training passes over its rows, and where it ends."""

from collections.abc import Iterator

import numpy as np

from common.config import Settings

__all__ = ["batch_rows", "row_orders", "steps_of"]


def batch_rows(n: int, settings: Settings) -> int:
    """Return how many of n rows a step is on: all of survival, whose rows are compared."""
    return max(n, 1) if settings.learning_task.whole_site else settings.batch_size


def row_orders(
    n: int, settings: Settings, rng: np.random.Generator, epochs: int = 0
) -> Iterator[np.ndarray]:
    """Yield the positions, 0..n-1, of the rows of each pass, drawn anew.

    With ``local-steps`` there are as many passes as its batches take, the last one cut off.

    Args:
        n: rows.
        settings: how long a training is.
        rng: draws each order.
        epochs: passes, in the place of what the settings say; 0: what they say.
    """
    left, batch = steps_of(n, settings, epochs), batch_rows(n, settings)
    while left > 0:
        order = rng.permutation(n)[: left * batch]
        left -= -(-len(order) // batch)
        yield order


def steps_of(n: int, settings: Settings, epochs: int = 0) -> int:
    """Return how many batches a training on n rows takes; ``epochs`` as above."""
    if settings.local_steps and not epochs:
        return settings.local_steps
    return (epochs or settings.local_epochs) * -(-n // batch_rows(n, settings))
