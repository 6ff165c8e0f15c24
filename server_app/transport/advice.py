"""Which local objective a pair's OT cost suggests, how strong, and what that rests on.

Measured in docs/results/regularisation.md: five strengths of FedProx, Ditto and pFedMe on pairs of
sites. The best strength did not go with the cost, so what is suggested is what did best on average
among pairs on the same side of ``BENEFICIAL``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import DataError
from common.objectives import OBJECTIVES

__all__ = ["BENEFICIAL", "DETRIMENTAL", "Suggestion", "suggest"]

BENEFICIAL = 0.2
DETRIMENTAL = 0.3


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
        key = OBJECTIVES[self.objective].strength
        return {"objective": self.objective, **({key: self.strength} if key else {})}


_ONE_MODEL = Suggestion(
    "fedavg",
    0.0,
    f"a cost up to {BENEFICIAL}: one model can serve both if they label by one rule "
    "(+1.98 % against training alone on 8 measured pairs). Two rules do not show in a cost: then "
    "it gave -18.72 % on 5 pairs, ditto with personal-lambda 0.05 -1.73 %",
)
_MODEL_EACH = Suggestion(
    "ditto",
    0.3,
    f"a cost above {BENEFICIAL}: a model per site, held near the common one, did best on average "
    "(+1.29 % against training alone on 8 measured pairs, one model -0.68 %). The best strength "
    "did not go with the cost (rank correlation -0.04, p = 0.861), so it is one for all costs",
)


def suggest(cost: float) -> Suggestion:
    """Return what to try at an OT cost in [0, 1] of the variant ``paper``.

    A heuristic from few and small pairs of sites, and the reason says so with its figures.

    Raises:
        DataError: a cost outside [0, 1]; for a pair with nothing to compare there is no advice.
    """
    if not 0 <= cost <= 1:
        raise DataError(f"cost={cost}: an OT cost lies between 0 and 1")
    return _ONE_MODEL if cost <= BENEFICIAL else _MODEL_EACH
