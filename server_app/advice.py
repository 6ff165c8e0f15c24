"""Which local objective a pair's OT cost suggests, how strong, and what that rests on."""

from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import DataError

__all__ = ["BENEFICIAL", "DETRIMENTAL", "Suggestion", "suggest"]

BENEFICIAL = 0.2
DETRIMENTAL = 0.3

_STRENGTH_OF = {"fedprox": "proximal-mu", "ditto": "personal-lambda", "pfedme": "personal-lambda"}


@dataclass(frozen=True)
class Suggestion:
    """A local objective to try.

    Attributes:
        objective: a value of the setting ``objective``.
        strength: of its ``proximal-mu`` or ``personal-lambda``; 0 where the objective has none.
        reason: one or two sentences: why, and from what.
    """

    objective: str
    strength: float
    reason: str

    @property
    def settings(self) -> Mapping[str, str | float]:
        """The suggestion as settings of a run."""
        key = _STRENGTH_OF.get(self.objective)
        return {"objective": self.objective, **({key: self.strength} if key else {})}


def suggest(cost: float) -> Suggestion:
    """Return what to try at an OT cost in [0, 1] of the variant ``paper``.

    A heuristic: no strength has been fitted to costs yet, and the reason says so.

    Raises:
        DataError: a cost outside [0, 1]; for a pair with nothing to compare there is no advice.
    """
    if not 0 <= cost <= 1:
        raise DataError(f"cost={cost}: an OT cost lies between 0 and 1")
    if cost <= BENEFICIAL:
        return Suggestion("fedavg", 0.0, f"a cost up to {BENEFICIAL}: one model can serve both")
    return Suggestion(
        "ditto",
        1.0,
        f"a cost above {BENEFICIAL}: a model per site, held near the common one; how near is not "
        "known: 1.0 is the default and rests on no measurement",
    )
