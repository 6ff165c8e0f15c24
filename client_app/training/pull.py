"""Pull towards an anchor: what a local objective adds to SGD."""

from dataclasses import dataclass

from common.messages import Parameters


@dataclass(frozen=True)
class Pull:
    """The term strength/2 ||w - anchor||^2 beside the loss; batch norm's buffers are not pulled.

    The squared norm, whose gradient is strength (w - anchor).
    """

    anchor: Parameters
    strength: float
    """>= 0."""
    steps: int = 1
    """SGD steps on every batch."""
    follow: float = 0.0
    """Share of its way to w that the anchor moves after every batch, in [0, 1]."""

    def __post_init__(self) -> None:
        assert self.strength >= 0
        assert self.steps >= 1
        assert 0 <= self.follow <= 1

    @property
    def acts(self) -> bool:
        """Whether training differs from that without a pull."""
        return self.strength > 0 or self.steps > 1
