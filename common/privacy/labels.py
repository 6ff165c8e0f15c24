"""Label histograms with noise: three mechanisms, what each promises, and how to read the answer.

Source of the form ``paper``: Pereira et al., "Energy-Efficient Federated Learning for AIoT using
Clustering Methods", appendix C, eq. 4. Randomised response: Warner 1965; k answers: Kairouz,
Bonawitz, Ramage, ICML 2016.
"""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from common.config import Training
from common.privacy import noise
from common.privacy.accounting import (
    ContinuousGaussian,
    DiscreteGaussian,
    Event,
    RandomisedResponse,
)
from common.privacy.book import REPLACE_ROW, SITE
from common.privacy.closed_form import discrete_gaussian_sigma, gaussian_epsilon
from common.privacy.noise import Entropy

__all__ = ["LABEL_PRIVACY", "LabelMechanism", "label_mechanism", "plausible_counts"]

FloatArray = NDArray[np.float64]

_MOVED = 2  # counts that change by 1 when one row gets another label


@dataclass(frozen=True)
class LabelMechanism(ABC):
    """A way to release a label histogram: (K,) counts -> (K,) estimates, unbiased."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is, with the size of its noise."""

    @property
    @abstractmethod
    def event(self) -> Event:
        """What one release costs."""

    @property
    @abstractmethod
    def unit(self) -> str:
        """In what two data sets may differ."""

    @property
    @abstractmethod
    def promise(self) -> tuple[float, float]:
        """The (epsilon, delta) of one release."""

    @abstractmethod
    def release(self, counts: NDArray[np.int64], entropy: Entropy = os.urandom) -> FloatArray:
        """Return estimates of the rows per class (K,), which may be negative."""


@dataclass(frozen=True)
class DiscreteGaussianCounts(LabelMechanism):
    """Independent discrete Gaussian noise on every count."""

    epsilon: float
    delta: float

    @property
    def sigma(self) -> float:
        """Standard deviation in rows."""
        return discrete_gaussian_sigma(self.epsilon, self.delta, _MOVED)

    @property
    def name(self) -> str:
        """What it is, with the size of its noise."""
        return f"discrete Gaussian, sigma {self.sigma:.3g} rows"

    @property
    def event(self) -> Event:
        """Replacing a row's label moves two counts by 1 each."""
        return DiscreteGaussian(self.sigma, _MOVED)

    @property
    def unit(self) -> str:
        """One row: the number of rows is public."""
        return REPLACE_ROW

    @property
    def promise(self) -> tuple[float, float]:
        """As set."""
        return self.epsilon, self.delta

    def release(self, counts: NDArray[np.int64], entropy: Entropy = os.urandom) -> FloatArray:
        """Return the counts with noise added, whole numbers."""
        added = counts + noise.discrete_gaussian(self.sigma, len(counts), entropy)
        return added.astype(np.float64)


@dataclass(frozen=True)
class RandomisedLabels(LabelMechanism):
    """Every row's label answers by itself: the true one, or one of the others at random."""

    epsilon: float
    num_classes: int

    @property
    def event(self) -> RandomisedResponse:
        """One answer per row, and a row is in one place only."""
        return RandomisedResponse(self.epsilon, self.num_classes)

    @property
    def name(self) -> str:
        """What it is, with the share of true answers."""
        return f"k-ary randomised response, {100 * self.event.truth:.3g} % of the labels true"

    @property
    def unit(self) -> str:
        """One row: the number of rows is public."""
        return REPLACE_ROW

    @property
    def promise(self) -> tuple[float, float]:
        """Pure: delta is 0."""
        return self.epsilon, 0.0

    def release(self, counts: NDArray[np.int64], entropy: Entropy = os.urandom) -> FloatArray:
        """Return what the randomised labels say of the true counts."""
        truth, other = self.event.truth, self.event.other
        labels = np.repeat(np.arange(len(counts)), counts)
        chance, which = noise.uniform(2 * len(labels), entropy).reshape(2, -1)
        # One of the other k - 1, counted from the label on.
        step = 1 + np.floor(which * (len(counts) - 1)).astype(np.int64)
        answers = np.where(chance < truth, labels, (labels + step) % len(counts))
        seen = np.bincount(answers, minlength=len(counts))
        # E[seen] = truth · c + other · (n - c), solved for c.
        return np.asarray((seen - other * len(labels)) / (truth - other), dtype=np.float64)


@dataclass(frozen=True)
class PaperShares(LabelMechanism):
    """Pereira eq. 4: Gaussian noise of sigma = gamma / M on the shares of the M classes."""

    gamma: float
    num_classes: int
    """M of the paper's appendix C; in its section III the letter is the clients of a round."""
    delta: float

    @property
    def sigma(self) -> float:
        """Standard deviation of a share."""
        return self.gamma / self.num_classes

    @property
    def name(self) -> str:
        """What it is, with the size of its noise."""
        return f"Gaussian on the shares, sigma {self.sigma:.3g}"

    @property
    def event(self) -> ContinuousGaussian:
        """Another site's data can move all of the weight from one class to another."""
        return ContinuousGaussian(math.sqrt(2) / self.sigma)

    @property
    def unit(self) -> str:
        """The noise does not depend on how many rows there are, so it is for all of them."""
        return SITE

    @property
    def promise(self) -> tuple[float, float]:
        """What the paper's noise amounts to."""
        return gaussian_epsilon(self.event.mu, self.delta), self.delta

    def release(self, counts: NDArray[np.int64], entropy: Entropy = os.urandom) -> FloatArray:
        """Return the noisy shares times the number of rows."""
        shares = counts / counts.sum() + noise.gaussian(self.sigma, len(counts), entropy)
        estimates: FloatArray = counts.sum() * shares
        return estimates


def label_mechanism(settings: Training, num_classes: int) -> LabelMechanism | None:
    """Return the mechanism of a run's settings; None where histograms go out as they are."""
    return LABEL_PRIVACY[settings.label_privacy](settings, num_classes)


LABEL_PRIVACY: Final[Mapping[str, Callable[[Training, int], LabelMechanism | None]]] = {
    "none": lambda s, num_classes: None,
    "gaussian": lambda s, num_classes: DiscreteGaussianCounts(s.epsilon, s.delta),
    "k-rr": lambda s, num_classes: RandomisedLabels(s.epsilon, num_classes),
    "paper": lambda s, num_classes: PaperShares(s.label_gamma, num_classes, s.delta),
    "two-party": lambda s, num_classes: None,
}
"""By the value of the setting: (settings, classes) -> the noise, None where none is added."""


def plausible_counts(estimates: ArrayLike, num_examples: int) -> FloatArray:
    """Return counts (K,) >= 0 that add up to the public number of rows: clipped, then scaled.

    Estimates of which none is above 0 tell nothing; all classes then count alike.

    >>> plausible_counts([6.0, -1.0, 3.0], 9).round(9).tolist()
    [6.0, 0.0, 3.0]
    """
    clipped = np.maximum(np.asarray(estimates, dtype=np.float64), 0.0)
    total = clipped.sum()
    shares: FloatArray = clipped / total if total > 0 else np.full(len(clipped), 1 / len(clipped))
    return num_examples * shares
