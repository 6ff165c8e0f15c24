"""Inner strategy: what a strategy of another app must be, to work on cohorts that it is given."""

from collections.abc import Collection, Iterable, Sequence

from flwr.app import Message
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    Strategy,
)

from common.errors import ConfigError, RoundError
from server_app.selection.rules import Selection

__all__ = ["check", "check_all_asked", "check_cohort", "takes_mean", "weight_key"]

_LEAST = ("min_train_nodes", "min_available_nodes")


def check(strategy: Strategy, select: Selection, clients_per_round: int) -> None:
    """Refuse what cannot work, before anything starts.

    Args:
        strategy: of the app.
        select: who trains.
        clients_per_round: how many; 0: not known yet.

    Raises:
        ConfigError: a strategy with rounds of its own, that samples, that waits for more nodes than
            there will be, or that makes nothing of weights that the method gives.
    """
    name = type(strategy).__name__
    if type(strategy).start is not Strategy.start:
        raise ConfigError(
            f"{name} has a start of its own, which would play its rounds past the cohorts; use a "
            "strategy with Flower's start, as FedAvg and those made from it"
        )
    fraction = getattr(strategy, "fraction_train", 1.0)
    if fraction != 1.0:
        raise ConfigError(
            f"{name} has fraction_train={fraction:g}: the cohort says who trains, and all of it "
            "must; leave that at 1.0"
        )
    if clients_per_round:
        message = _waits(strategy, clients_per_round)
        if message:
            raise ConfigError(f"clients_per_round={clients_per_round}: {message}")
    if select.weighs and not takes_mean(strategy):
        raise ConfigError(
            f"{name} takes no weighted mean of the updates, and the method gives each a weight; "
            "use FedAvg or one of FedAvgM, FedProx, FedAdam, FedYogi, FedAdagrad"
        )


def takes_mean(strategy: Strategy) -> bool:
    """Return whether a strategy looks at the updates' weighted mean alone.

    That is known of Flower's own ways to aggregate; another may look at single updates.
    """
    kinds = (FedAvg, FedAvgM, FedAdam, FedYogi, FedAdagrad)
    return any(type(strategy).aggregate_train is kind.aggregate_train for kind in kinds)


def weight_key(strategy: Strategy) -> str:
    """Return under which name a reply's metrics hold its weight in the mean."""
    return str(getattr(strategy, "weighted_by_key", "num-examples"))


def check_cohort(strategy: Strategy, names: Sequence[str], what: str) -> None:
    """Refuse a cohort that a strategy would wait to be larger.

    Args:
        strategy: of the app.
        names: of the cohort.
        what: it is, as ``the cohort of round 3``.

    Raises:
        RoundError: it is too small.
    """
    message = _waits(strategy, len(names))
    if message:
        raise RoundError(f"{what} is {', '.join(names)}: {message}")


def _waits(strategy: Strategy, size: int) -> str:
    """Return why a strategy would wait for ever for a cohort of a size; empty: it would not."""
    for name in _LEAST:
        least = getattr(strategy, name, 0)
        if least > size:
            return (
                f"{type(strategy).__name__} has {name}={least} and would wait for more for ever; "
                f"set min_train_nodes and min_available_nodes to {size} at most, or train more "
                "sites per round"
            )
    return ""


def check_all_asked(strategy: Strategy, sent: Iterable[Message], nodes: Collection[int]) -> None:
    """Refuse a strategy that asks others than the cohort, or not all of it.

    Raises:
        RoundError: the messages are not one to each node.
    """
    asked = [message.metadata.dst_node_id for message in sent]
    if sorted(asked) != sorted(nodes):
        raise RoundError(
            f"{type(strategy).__name__} sends {len(asked)} messages to {len(set(asked))} nodes for "
            f"a cohort of {len(nodes)}: it must ask each once; use a strategy that does not sample"
        )
