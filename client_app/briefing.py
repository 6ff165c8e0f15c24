"""Briefing of a site: what it was told of a run, taken once and held until the run ends."""

import logging

from flwr.app import ConfigRecord, Context, Message

from client_app.simulated_sites import is_of_one_owner
from client_app.site_state import STATE_DIR, keeper_of
from common.errors import MessageError
from common.messages import INTRODUCE, RECORD, check_form
from common.messages.briefs import Brief

__all__ = ["brief_of", "hear"]

log = logging.getLogger("coterie")

_BRIEF, _TOLD = "brief", "told"  # in Context.state: of one run


def hear(message: Message, context: Context) -> None:
    """Take the brief in a message that asks who a site is, if there is one.

    Raises:
        MessageError: it is none, or another than the one that this run began with.
    """
    if message.metadata.message_type != INTRODUCE:
        return
    check_form(message.content)
    record = message.content.get(RECORD)
    if record is None or "run" not in record:
        return
    told = Brief.decode(message.content)
    if not _is_kept(context):
        return
    keeper = keeper_of(context)
    with keeper.locked():  # two processes may have been handed messages at once
        known = brief_of(context)
        if known is not None and known != told:
            raise MessageError(
                "this run's brief was another when it began; a site holds to the first one"
            )
        context.state[_BRIEF] = ConfigRecord({_TOLD: told.to_bytes()})
        if known is not None:
            return
        if context.node_config.get(STATE_DIR):
            keeper.write(_file(context), told.to_bytes())
    if "data-path" in context.node_config:
        log.info("run %s: its method sees %s", told.run, ", ".join(told.needs) or "no single site")


def brief_of(context: Context) -> Brief | None:
    """Return the brief of the run that a message is of; None where a site was told none.

    A site that was restarted in mid-run finds it in its ``state-dir``.
    """
    if not _is_kept(context):
        return None
    kept = _in_memory(context)
    if kept is None and context.node_config.get(STATE_DIR):
        kept = keeper_of(context).read(_file(context))
    return None if kept is None else Brief.from_bytes(kept)


def _in_memory(context: Context) -> bytes | None:
    record = context.state.config_records.get(_BRIEF)
    told = None if record is None else record.get(_TOLD)
    return told if isinstance(told, bytes) else None


def _is_kept(context: Context) -> bool:
    """Return whether a node asks itself anything: one of a simulation of ours does not."""
    config = context.node_config
    return "data-path" in config or bool(config.get(STATE_DIR)) or is_of_one_owner(config)


def _file(context: Context) -> str:
    return f"brief-{context.run_id:x}.json"
