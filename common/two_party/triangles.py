"""Triangles of sites, which no reader of products may see: which third site reads each pair.

The products of three sites with each other give X X' of each; with those of two of the three pairs
nobody has that.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations

from common.errors import ConfigError

__all__ = ["has_triangle", "third_sites"]


def has_triangle(pairs: Iterable[tuple[str, str]] | Iterable[tuple[int, int]]) -> bool:
    """Return whether all three pairs of some three sites are among these.

    >>> has_triangle([(0, 1), (1, 2)]), has_triangle([(0, 1), (1, 2), (0, 2)])
    (False, True)
    """
    beside: defaultdict[object, set[object]] = defaultdict(set)
    for first, second in pairs:
        if first != second:
            beside[first].add(second)
            beside[second].add(first)
    return any(beside[first] & beside[second] for first in beside for second in beside[first])


def third_sites(count: int) -> dict[tuple[int, int], int]:
    """Return the third site of every pair i < j of sites 0 .. count - 1.

    On a circle, the pair (c, c + k) is read by c - k: to a third site t that is (t + k, t + 2k),
    and k -> 2k below the full circle closes no cycle, let alone a triangle. Everybody reads about
    as many pairs, and of no site more than three of its pairs.

    >>> third_sites(3)
    {(0, 1): 2, (0, 2): 1, (1, 2): 0}

    Raises:
        ConfigError: fewer than three sites.
    """
    if count < 3:
        raise ConfigError(f"reveal = cost: {count} sites have no third one; use reveal=products")
    return {pair: _third(*pair, count) for pair in combinations(range(count), 2)}


def _third(first: int, second: int, count: int) -> int:
    apart = second - first
    if 2 * apart == count:  # c - k would be the other site; the next one has no pair with c + k
        return first + 1
    if 2 * apart < count:
        return (first - apart) % count
    return (second + apart) % count  # the short way round is from second to first
