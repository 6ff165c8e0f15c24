"""Figures in words, as the report's sections write them."""

import math
from collections.abc import Callable

from server_app.record.recorded_run import Json, number
from server_app.report.plots import byte_size

__all__ = ["duration", "loss", "number_or_unknown", "percent", "plural", "seconds", "size"]


def number_or_unknown(value: float, write: Callable[[float], str]) -> str:
    """Return a number as ``write`` puts it, or that it is not known."""
    return write(value) if math.isfinite(value) else "not known"


def percent(share: float) -> str:
    """Return a share in [0, 1] as per cent."""
    return number_or_unknown(share, lambda value: f"{100 * value:.1f} %")


def loss(value: float) -> str:
    """Return a loss in nats with four digits."""
    return number_or_unknown(value, "{:.4f}".format)


def size(value: float) -> str:
    """Return bytes in the unit that fits."""
    return number_or_unknown(value, byte_size)


def duration(value: float) -> str:
    """Return seconds as people say them."""
    if value < 100:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def seconds(line: Json) -> float:
    """Return the seconds of a round's line over all its phases."""
    parts = line.get("seconds", {})
    known = ("train", "evaluate", "server")
    more = sorted(set(parts) - set(known))
    return sum(number(parts, part) for part in (*known, *more))


def plural(count: int, noun: str) -> str:
    """Return a number of things, as ``1 round`` or ``2 rounds``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
