"""Fitted models' format: the keys of ``fitted.json``, of models that were fitted from sums."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from server_app.record.json_record import JsonRecord

__all__ = ["CoefficientLine", "FittedFile", "FittedModel"]


@dataclass(frozen=True, kw_only=True)
class CoefficientLine(JsonRecord):
    """A coefficient as :mod:`common.exact.coefficients` has it; what is absent is not known."""

    output: str = ""
    term: str = ""
    estimate: float | None = None
    error: float | None = None
    statistic: float | None = None
    p: float | None = None
    low: float | None = None
    high: float | None = None
    deviation: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class FittedModel(JsonRecord):
    """One model."""

    model: int = 0
    sites: tuple[str, ...] = ()
    """Whose rows it is fitted to."""
    rows: int | None = None
    """Of these."""
    exchanges: int = 0
    """Sums that it took."""
    silent_sites: int | None = None
    """Of these sites, how many have one class or no event, and so no part in the coefficients."""
    deviance: float | None = None
    coefficients: tuple[CoefficientLine, ...] = ()
    importance: Mapping[str, float] = field(default_factory=dict)
    """Share of all gain that splits by each column brought, the largest first."""


@dataclass(frozen=True, kw_only=True)
class FittedFile(JsonRecord):
    """``fitted.json``: what models that were fitted from sums say of the columns."""

    FILE = "fitted.json"

    learner: str = ""
    """The value of the setting ``model``."""
    units: str = ""
    """What coefficients are by: ``own`` units of the columns, or ``scaled`` ones of the sites."""
    models: tuple[FittedModel, ...] = ()
