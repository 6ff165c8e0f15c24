"""Waiting in words: a line every ten seconds."""

import time
from types import SimpleNamespace

from server_app.rounds.waiting import Waiting


def messages(kind="train", group="7", count=4):
    about = SimpleNamespace(message_type=kind, group_id=group)
    return [SimpleNamespace(metadata=about)] * count


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def test_an_exchange_speaks_every_ten_seconds_and_not_of_its_end(monkeypatch, caplog):
    caplog.set_level("INFO", logger="coterie")
    clock, exchange = Clock(monkeypatch), messages()
    waiting = Waiting(exchange)
    for seconds, count in ((1, 0), (10, 1), (12, 2), (21, 3), (40, 4)):
        clock.now = 100.0 + seconds
        waiting.came(count)
    assert caplog.messages == ["round   7  1 of 4 sites trained", "round   7  3 of 4 sites trained"]


def test_other_kinds_are_named_and_nothing_is_said_of_no_messages(monkeypatch, caplog):
    caplog.set_level("INFO", logger="coterie")
    clock = Clock(monkeypatch)
    few, none = Waiting(messages("query.loss", group="before", count=2)), Waiting([])
    clock.now += 11
    few.came(1)
    none.came(0)
    assert caplog.messages == ["1 of 2 sites answered query.loss"]


def test_every_kind_that_trains_has_trained(monkeypatch, caplog):
    caplog.set_level("INFO", logger="coterie")
    clock = Clock(monkeypatch)
    for kind in ("train", "train.telling_loss", "train.of_choice", "train.for_sum"):
        waiting = Waiting(messages(kind, count=2))
        clock.now += 11
        waiting.came(1)
    assert caplog.messages == ["round   7  1 of 2 sites trained"] * 4
