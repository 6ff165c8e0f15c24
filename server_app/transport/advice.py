"""Advice: the local objective that an OT cost suggests, how strong, and what that rests on.

Measured in docs/results/regularisation.md: five strengths of FedProx, Ditto and pFedMe on pairs of
sites. The best strength did not go with the cost, so what is suggested is what did best on average
among pairs on the same side of the threshold below which a cost is beneficial.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import DataError
from common.objectives import OBJECTIVES
from server_app.transport.verdicts import Thresholds

__all__ = ["Suggestion", "suggest"]

_MEASURED_AT = 0.2  # that threshold when the pairs on that page were divided


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


def suggest(cost: float, thresholds: Thresholds) -> Suggestion:
    """Return what to try at an OT cost in [0, 1] of the variant ``paper``.

    A heuristic from few and small pairs of sites, and the reason says so with its figures.

    >>> suggest(0.1, Thresholds()).settings
    {'objective': 'fedavg'}
    >>> suggest(0.1, Thresholds(beneficial=0.05)).settings
    {'objective': 'ditto', 'personal-lambda': 0.3}

    Args:
        cost: the mean within a group.
        thresholds: that are in force.

    Raises:
        DataError: a cost outside [0, 1]; for a pair with nothing to compare there is no advice.
    """
    if not 0 <= cost <= 1:
        raise DataError(f"cost={cost}: an OT cost lies between 0 and 1")
    near = cost <= thresholds.beneficial
    return _one_model(thresholds) if near else _model_each(thresholds)


def _one_model(thresholds: Thresholds) -> Suggestion:
    reason = (
        f"a cost up to {thresholds.beneficial:g}: one model can serve both if they label by one "
        f"rule (+1.98 % against training alone on 8 measured pairs{_divided(thresholds)}). Two "
        "rules do not show in a cost: then it gave -18.72 % on 5 pairs, ditto with personal-lambda "
        "0.05 -1.73 %"
    )
    return Suggestion("fedavg", 0.0, reason)


def _model_each(thresholds: Thresholds) -> Suggestion:
    reason = (
        f"a cost above {thresholds.beneficial:g}: a model per site, held near the common one, did "
        "best on average (+1.29 % against training alone on 8 measured pairs"
        f"{_divided(thresholds)}, one model -0.68 %). The best strength did not go with the cost "
        "(rank correlation -0.04, p = 0.861), so it is one for all costs"
    )
    return Suggestion("ditto", 0.3, reason)


def _divided(thresholds: Thresholds) -> str:
    """Return where the measured pairs were divided, if that is not the threshold in force."""
    same = thresholds.beneficial == _MEASURED_AT
    return "" if same else f", divided at {_MEASURED_AT:g}"
