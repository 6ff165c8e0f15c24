"""Hashed texts: words of a free text as numbers, by scikit-learn's ``HashingVectorizer``.

It learns nothing of the texts, so that all sites make the same of a word without telling it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST_FEATURES", "MOST_FEATURES", "hashed"]

LEAST_FEATURES, MOST_FEATURES = 2, 2**12


def hashed(texts: Sequence[str], features: int) -> NDArray[np.float64]:
    """Return (n, features): of each text how often its words stand in it, of length 1.

    Words are of two letters or digits and more, in small letters; a hash (MurmurHash3) gives each
    its feature and its sign. A text without a word is 0 in all of them.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(n_features=features)
    return np.asarray(vectorizer.transform(texts).toarray(), np.float64)
