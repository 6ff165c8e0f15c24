"""Seeds: each random draw has its own, from that of the run and the words that say what it is for.

A draw does not depend on how many draws came before it, so the numbers are the same for any number
of workers, in any order of arrival, and after a resume. Keys, masks and privacy noise never come
from here: they use the operating system's generator.
"""

import hashlib

import numpy as np


def derive_seed(seed: int, *words: str | int) -> int:
    """Return a seed in [0, 2**63) for one purpose, as ``derive_seed(7, "train", "site-3", 12)``.

    >>> derive_seed(7, "train", "site-3", 12) == derive_seed(7, "train", "site-3", 12)
    True
    >>> derive_seed(7, "train", "site-3", 12) == derive_seed(7, "train", "site-31", 2)
    False
    """
    text = "\x1f".join(f"{type(word).__name__}:{word}" for word in (seed, *words))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *words: str | int) -> np.random.Generator:
    """Return a NumPy generator of its own for one purpose of one run."""
    return np.random.default_rng(derive_seed(seed, *words))
