"""Questions: what a run may ask of a site, how often, and how much work that may be.

A site knows what concerns it of the run's settings, and was told what its method sees of single
sites (:class:`~common.messages.briefs.Brief`). Whoever lies about a run could still send any kind
of message, again and again, with models made to read a row out of each answer. So a site with data
of its own answers what its run's method, protections and last steps call for, each once per round
and attempt, and no more work than its own file allows. A simulation, whose sites are all of one
owner, asks itself.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message

from client_app.handlers import Handler
from client_app.simulated_sites import is_of_one_owner
from client_app.site import Site
from client_app.site_config import SiteConfig, from_node_config
from client_app.site_state import ContextKeeper
from common import messages
from common.config import Training
from common.errors import BudgetError, MessageError
from common.exact.learners import is_summed
from common.messages import RECORD
from common.messages.briefs import Brief
from common.messages.kind import Kind
from common.messages.kinds import KINDS, words_of
from common.messages.row_sums import ROW_SUMS
from common.pilot import messages as pilot
from common.pilot.settings import PilotSettings
from common.secagg import messages as secagg

__all__ = ["admit", "check", "is_asked", "is_called_for", "note", "rounded"]

_ANSWERED = "questions-answered"  # in Context.state: of one run
_ATTEMPTS = 10  # of a round; an honest server makes two
_DIGITS = 4
_TWICE = frozenset({messages.LOSS, messages.TRAIN})
"""Kinds asked twice in an attempt: losses of a cohort and of all; a rehearsal and the training."""
_ONCE = frozenset(
    {
        messages.LOSS,
        messages.TRAIN,
        messages.TRAIN_TELLING,
        messages.EVALUATE,
        messages.FINE_TUNE,
        messages.CHOOSE,
        messages.TRAIN_CHOICE,
        messages.SCORE_COUNTS,
        messages.FINAL_EVALUATION,
        messages.REPRESENTATIONS,
        messages.EMBEDDED_ROWS,
        messages.CLASS_STATISTICS,
        secagg.SECAGG_TRAIN,
        secagg.PILOT_SUM,
        pilot.PILOT_TRAIN,
        pilot.PILOT_LOOK,
        pilot.PILOT_TELL,
    }
)
"""Kinds with a model of the server's, of which rounds and attempts are counted here.

Steps of a fit, of products and of a sum that began are counted where they are answered.
"""
_WITHHELD = frozenset(
    {
        messages.LOSS,
        messages.TRAIN_TELLING,
        messages.CHOOSE,
        messages.TRAIN_CHOICE,
        messages.SCORE_COUNTS,
        ROW_SUMS,
        pilot.PILOT_SUMS,
    }
)
"""Kinds whose answers are exact figures of training rows, which no noise covers."""


def admit(handler: Handler, message: Message, site: Site, context: Context) -> None:
    """Take note that a site answers a message, as :func:`note`, if :func:`check` lets it."""
    check(handler, message, site, context)
    note(handler, message, site, context)


def is_asked(site: Site, context: Context) -> bool:
    """Return whether a site's messages are looked at: a simulated one does without."""
    return not (site.simulated or is_of_one_owner(context.node_config))


def check(handler: Handler, message: Message, site: Site, context: Context) -> None:
    """Refuse a message that a site does not answer.

    Raises:
        MessageError: the run does not call for it, or it was answered before; more work than the
            site's file allows.
        BudgetError: exact figures, where the site has a privacy budget.
    """
    if not is_asked(site, context):
        return
    kind, own = handler.kind, from_node_config(context.node_config)
    if not is_called_for(kind, site.settings, site.brief):
        why = "" if site.brief else ", and the server has not said what its method sees"
        raise MessageError(
            f"{kind.name}: nothing in this run calls for it (strategy={site.settings.strategy}"
            f"{why}); a site answers what its run's settings and method need"
        )
    if site.budget.bounded and kind.name in _WITHHELD:
        raise BudgetError(
            f"{kind.name}: this site has a privacy budget (privacy-epsilon = "
            f"{site.budget.epsilon:g}) and gives out no exact figure of its training rows; choose "
            "a strategy without it, or leave the site out"
        )
    record: Mapping[str, Any] = dict(message.content.config_records.get(RECORD, {}))
    _check_work(site.settings, record, own)
    if kind.name == messages.PROBE_ROWS:
        planned = site.settings.others.get("cka-probe-size")
        if record["rows"] != planned:  # by another number other rows are drawn
            raise MessageError(f"{record['rows']} probe rows: this run compares {planned}")
    if kind.name in _ONCE:
        _check_round(site.settings, record)
        _times(kind, record, context)


def note(handler: Handler, message: Message, site: Site, context: Context) -> None:
    """Count the answer to a message that :func:`check` let through."""
    if handler.kind.name in _ONCE and is_asked(site, context):
        record = dict(message.content.config_records[RECORD])
        keeper = ContextKeeper(context.state)
        known = _answered(keeper) | {
            handler.kind.name: [*_number(record), _times(handler.kind, record, context) + 1]
        }
        keeper.write(_ANSWERED, json.dumps(known).encode())


# What a run calls for -----------------------------------------------------------------------------


def is_called_for(kind: Kind, training: Training, brief: Brief | None) -> bool:
    """Return whether an honest server asks this in a run.

    Args:
        kind: of the message.
        training: what a site knows of the run's settings.
        brief: what it was told of the run beside them; None: nothing, so that no word of the
            method's calls for anything.
    """
    if kind.name not in KINDS:  # from elsewhere: the run names it, and the site's file allows it
        return True
    if kind.name in _CALLED:
        return _CALLED[kind.name](training, brief)
    if kind.shows:
        shown = {release.name for release in kind.releases}
        return bool(kind.shows.keys() & _needs(brief) or shown & _disclosed(brief))
    return True


def _disclosed(brief: Brief | None) -> frozenset[str]:
    return frozenset(brief.disclosures if brief else ())


def _needs(brief: Brief | None) -> frozenset[str]:
    """Return what the run's method must see of single sites, with what that brings along."""
    needs = frozenset(brief.needs if brief else ())
    known = words_of(KINDS.values())
    return needs.union(*(known[need].brings for need in needs if need in known))


def _in_pilot(training: Training, *, summed: bool) -> bool:
    return training.of(PilotSettings).pilot and training.secagg == summed


def _is_masked(training: Training, brief: Brief | None) -> bool:
    return training.secagg


def _is_fitted(training: Training, *, masked: bool) -> bool:
    """Return whether models come from sums over rows: nothing is trained, then."""
    return is_summed(training.model) and training.secagg == masked


def _of_products(training: Training, brief: Brief | None) -> bool:
    is_told = "representation-products" in _disclosed(brief)
    return training.label_privacy == "two-party" or is_told


_CALLED: Mapping[str, Callable[[Training, Brief | None], bool]] = {
    messages.TRAIN: lambda training, brief: (
        not is_summed(training.model) and (not training.secagg or "models" in _needs(brief))
    ),
    ROW_SUMS: lambda training, brief: _is_fitted(training, masked=False),
    secagg.HIDDEN_SUMS: lambda training, brief: _is_fitted(training, masked=True),
    messages.FINE_TUNE: lambda training, brief: training.tuning_epochs > 0,
    messages.SCORE_COUNTS: lambda training, brief: training.decision_threshold == "common",
    messages.FINAL_EVALUATION: lambda training, brief: training.ends_with_evaluation,
    messages.PROBE_ROWS: lambda training, brief: "probe-rows" in _disclosed(brief),
    secagg.SECAGG_TRAIN: lambda training, brief: training.secagg and not is_summed(training.model),
    secagg.SECAGG_SHARE: _is_masked,
    secagg.SECAGG_MASK: _is_masked,
    secagg.SECAGG_AGREE: _is_masked,
    secagg.SECAGG_UNMASK: _is_masked,
    secagg.PILOT_SUM: lambda training, brief: _in_pilot(training, summed=True),
    pilot.PILOT_TELL: lambda training, brief: _in_pilot(training, summed=True),
    pilot.PILOT_TRAIN: lambda training, brief: _in_pilot(training, summed=False),
    pilot.PILOT_LOOK: lambda training, brief: _in_pilot(training, summed=False),
    pilot.PILOT_SUMS: lambda training, brief: (
        _in_pilot(training, summed=False) and training.of(PilotSettings).pilot_learners
    ),
    **{kind: _of_products for kind in KINDS if kind.startswith("query.product_")},
}
"""Kinds that settings call for, beside what the method needs to see."""


# How often, and how much --------------------------------------------------------------------------


def _times(kind: Kind, record: Mapping[str, Any], context: Context) -> int:
    """Return how often a question was answered; refuse once too often, and an earlier round."""
    now = _number(record)
    if now[1] > _ATTEMPTS:
        raise MessageError(f"{kind.name}: attempt {now[1]} of a round; {_ATTEMPTS} are the most")
    *last, times = _answered(ContextKeeper(context.state)).get(kind.name, [0, 0, 0])
    if now < last or (now == last and times >= (2 if kind.name in _TWICE else 1)):
        raise MessageError(
            f"{kind.name} of round {now[0]}, attempt {now[1]}: answered before in this run "
            f"(last: round {last[0]}, attempt {last[1]}); a site answers each once"
        )
    return times if now == last else 0


def _number(record: Mapping[str, Any]) -> list[int]:
    return [int(record["round"]), int(record.get("attempt", 1))]


def _answered(keeper: ContextKeeper) -> dict[str, list[int]]:
    """Return of each kind the round and attempt answered last, and how often."""
    kept = keeper.read(_ANSWERED)
    return json.loads(kept) if kept else {}


def _check_round(settings: Training, record: Mapping[str, Any]) -> None:
    """Refuse a round beyond the run's, or the pilot's, whose sums are numbered after the run's."""
    last = record.get("full", settings.num_server_rounds)
    if "played" in record:
        last += settings.num_server_rounds
    if record["round"] > last:
        raise MessageError(f"round {record['round']}: this run has {last} rounds")


def _check_work(settings: Training, record: Mapping[str, Any], own: SiteConfig) -> None:
    """Refuse more work than the site's own file allows, and than the run's settings say.

    Raises:
        MessageError: either.
    """
    if "folds" in record:
        planned = settings.of(PilotSettings)
        full = max(int(Training.model_fields["num_server_rounds"].default), planned.pilot_rounds)
        if (record["folds"], record["full"]) != (planned.pilot_folds, full):
            raise MessageError(
                f"{record['folds']} folds of {record['full']} rounds: this run's pilot has "
                f"{planned.pilot_folds} of {full}"
            )
    if (number := record.get("models", 0)) > (settings.num_clusters or 1):
        raise MessageError(
            f"a choice among {number} models: this run has {settings.num_clusters or 1}"
        )
    for key, number in _work_of(settings, record).items():
        bound = getattr(own, key.replace("-", "_"))
        if number > bound:
            raise MessageError(
                f"the run asks for {number} {key.partition('-')[2]}, and this site's file allows "
                f"{key} = {bound}; ask for fewer, or let its owner raise that"
            )


def _work_of(settings: Training, record: Mapping[str, Any]) -> dict[str, int]:
    """Return what a message makes a site do, by the key of the site's file that bounds it."""
    rounds = max(settings.num_server_rounds, record.get("full", 0))
    return {
        "most-rounds": rounds,
        "most-epochs": max(settings.local_epochs, settings.tuning_epochs),
        "most-steps": settings.local_steps or 0,
        "most-folds": record.get("folds", 0),
        "most-resamples": settings.bootstrap_resamples,
    }


# How exactly --------------------------------------------------------------------------------------


def rounded(value: float, site: Site) -> float:
    """Return a mean over rows as a site tells it: a real one to four digits.

    A made model could write a value of a row into the digits of a mean.
    """
    if site.simulated or not math.isfinite(value) or value == 0:
        return value
    return float(f"{value:.{_DIGITS}g}")
