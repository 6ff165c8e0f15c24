"""A source of bytes in place of the operating system's, the same for a seed."""

import hashlib
import itertools


def repeatable(seed):
    """A source of bytes that is the same for a seed: SHA-256 of a counter."""
    count = itertools.count()

    def entropy(size):
        blocks = (
            hashlib.sha256(f"{seed}/{next(count)}".encode()).digest() for _ in range(-(-size // 32))
        )
        return b"".join(blocks)[:size]

    return entropy
