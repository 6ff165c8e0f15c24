"""What no secure sum begins with, and replies that do not count in one."""

import os
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from masked_sums import (
    assert_equal_to_fixed_point,
    lines,
    model_of,
    run,
    settings_in,
    trained_directly,
)

from client_app.app import app as real
from client_app.training import personal
from common import messages
from common.config import Settings
from common.errors import ConfigError, RoundError
from common.secagg.messages import (
    MASKED,
    SECAGG_KEYS,
    SECAGG_MASK,
    SECAGG_TRAIN,
    SECAGG_UNMASK,
    MaskedReport,
    SecaggDealt,
    SecaggDisclosure,
    SecaggKeys,
)
from server_app import methods
from server_app.averaging import average
from server_app.protection import secagg_limits
from server_app.protection.catalogue import PROTECTIONS
from server_app.selection.rules import Everybody

pytestmark = pytest.mark.usefixtures("no_report")


# What is refused before it starts ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"strategy": "delta", "clients-per-round": 4}, "each site's last update"),
        ({"strategy": "clustered-sampling-similarity", "clients-per-round": 4}, "last update"),
        ({"strategy": "fedcor", "clients-per-round": 4}, "more than one update"),
        ({"strategy": "flis"}, "again and again"),
        ({"strategy": "fedsccs", "num-clusters": 2, "recluster-every": 5}, "again and again"),
        ({"strategy": "random", "clients-per-round": 2}, "must be at least 3"),
        ({"strategy": "similarity", "routing": "per-cluster"}, "one site per cluster"),
        (
            {"strategy": "similarity", "routing": "per-cluster", "selection": "link-aware"},
            "one site per cluster",
        ),
        ({"strategy": "similarity", "num-clusters": 2}, "num-clusters = 2"),
        (
            {"strategy": "simclust", "routing": "per-cluster", "num-clusters": 2}
            | {"clients-per-round": 5},
            "must be at least 6",
        ),
        ({"strategy": "fedavg", "num-clients": 2}, "needs at least 3"),
        ({"strategy": "fedavg", "objective": "local"}, "no model leaves a site"),
        ({"strategy": "fedavg", "update-privacy": "central-dp"}, "server clips single updates"),
        ({"strategy": "fedavg", "num-clients": 5, "secagg-min-cohort": 6}, "needs at least 6"),
    ],
)
def test_what_secure_sums_cannot_do_is_refused_before_the_first_message(words, reason):
    settings = Settings.parse(words | {"secagg": True})
    with pytest.raises(ConfigError, match=reason):
        methods.build(settings)
    methods.build(settings.replace(secagg=False))


@pytest.mark.parametrize(
    "words",
    [
        {"strategy": "fedavg"},
        {"strategy": "random", "clients-per-round": 3},
        {"strategy": "power-of-choice", "clients-per-round": 3},
        {"strategy": "clustered-sampling-size", "clients-per-round": 3},
        {"strategy": "similarity", "routing": "per-cluster", "selection": "all"},
        {"strategy": "repclust", "clients-per-round": 4},
        {"strategy": "fedsccs", "num-clusters": 2},
        {"strategy": "fedavg", "objective": "ditto"},
    ],
)
def test_what_secure_sums_can_do_is_not(words):
    settings = Settings.parse(words | {"secagg": True})
    [sums] = [each for each in PROTECTIONS if each.chosen(settings)]
    assert sums.hidden
    assert not sums.denied(methods.build(settings).needs)


class PairOfEach(Everybody):
    """Two members of every cluster."""

    def of_each_cluster(self, num_clusters):
        return 2


@pytest.mark.parametrize(
    ("clusters", "model_per_cluster", "reason"),
    [
        ("", True, "2 sites per cluster train each model, and an average over 2 sites hides"),
        (1, False, "num-clusters = 1 and 2 sites of each train, where an average needs at least 3"),
        (2, False, None),
        ("", False, None),
    ],
)
def test_a_rule_says_how_many_of_each_cluster_it_takes(clusters, model_per_cluster, reason):
    settings = Settings.parse({"secagg": True, "num-clusters": clusters})
    with pytest.raises(ConfigError, match=reason) if reason else nullcontext():
        secagg_limits.check(settings, PairOfEach(), model_per_cluster=model_per_cluster)


# A site that cannot take part --------------------------------------------------------------------


def trains_to(value):
    """A site whose training ended in some number: the guard of the plain path moved to the site."""

    def train(message, context):
        learned = personal.train

        def spoilt(parameters, site, order, hide):
            result = learned(parameters, site, order, hide)
            arrays = {name: np.full_like(v, value) for name, v in result.shared.items()}
            return replace(result, shared=arrays)

        personal.train = spoilt
        try:
            return real(message, context)
        finally:
            personal.train = learned

    return train


@pytest.mark.parametrize(
    ("value", "said"),
    [(np.nan, "NaN"), (1e30, "1e+30"), (100.0, "100, where entries of 24 bits")],
)
def test_a_site_whose_training_overflowed_adds_nothing_and_nobody_sees_which(
    tmp_path, caplog, value, said
):
    """A model made for it overflows where a row's value is above a bound: an error tells it."""
    settings = settings_in(tmp_path)
    folder, _ = run(settings, {(2, SECAGG_TRAIN): trains_to(value)})
    assert f"site-2: it adds nothing to this sum: array 'conv1.bias' holds a change of {said}" in (
        caplog.text
    )
    [line] = lines(folder)
    assert line["rejected"] == []
    [summed] = line["secure_sums"]
    arrays, rows, _ = trained_directly(settings, [0, 1, 3, 4])
    assert summed["masked"] == 5
    assert summed["weight"] == sum(rows)
    assert_equal_to_fixed_point(model_of(folder), average(arrays, rows), weight=sum(rows) / 1438)
    masked = [entry for entry in lines(folder, "clients") if entry["phase"] == "mask"]
    assert len({entry["bytes_up"] for entry in masked}) == 1


def fails(message, context):
    """A site whose training raises."""
    learned = personal.train
    personal.train = lambda *given: {}[f"row 17 holds {given[1].train[0][17]}"]
    try:
        return real(message, context)
    finally:
        personal.train = learned


def test_a_site_whose_training_fails_adds_the_model_as_it_was_sent(tmp_path):
    settings = settings_in(tmp_path)
    folder, _ = run(settings, {(2, SECAGG_TRAIN): fails})
    [line] = lines(folder)
    assert line["rejected"] == []
    assert not any("row 17" in file.read_text() for file in folder.glob("*.json*"))


def resends(change):
    """A site that replaces the record of its reply."""

    def answer(message, context):
        reply = real(message, context)
        kind = {
            SECAGG_KEYS: SecaggKeys,
            SECAGG_TRAIN: SecaggDealt,
            SECAGG_UNMASK: SecaggDisclosure,
        }[message.metadata.message_type]
        return messages.reply(message, change(kind.decode(reply.content)))

    return answer


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (SECAGG_KEYS, lambda r: replace(r, site="site-4"), "signed 'site-4'"),
        (SECAGG_KEYS, lambda r: replace(r, keys=r.keys[:1]), "signature"),
        (SECAGG_KEYS, lambda r: replace(r, keys=[r.keys[0], os.urandom(32)]), "signature"),
        (SECAGG_KEYS, lambda r: replace(r, signature=r.signature[:-1]), "cut short"),
        (SECAGG_TRAIN, lambda r: replace(r, keys=[r.keys[0], os.urandom(32)]), "signature"),
        (SECAGG_TRAIN, lambda r: replace(r, seconds=-1.0), "seconds"),
        (SECAGG_TRAIN, lambda r: replace(r, round=2), "of round 2"),
        (SECAGG_TRAIN, lambda r: replace(r, sites=r.sites[1:], sealed=r.sealed[1:]), "neighbours"),
        (SECAGG_TRAIN, lambda r: replace(r, sealed=[b"x" * 10**6] * 4), "bytes, at most"),
        (SECAGG_UNMASK, lambda r: replace(r, seeds=[s[:-1] for s in r.seeds]), "another length"),
        (SECAGG_UNMASK, lambda r: replace(r, survivors=r.others, seeds=r.keys), "not asked for"),
    ],
)
def test_replies_that_do_not_fit_are_refused_and_their_site_is_named(tmp_path, kind, change, said):
    folder, _ = run(settings_in(tmp_path), {(2, kind): resends(change)})
    [line] = lines(folder)
    assert {entry["site"] for entry in line["rejected"]} == {"site-2"}
    assert said in line["rejected"][0]["reason"]
    assert line["secure_sums"][0]["reason"] == ""


def test_a_wrong_share_spoils_a_sum_which_is_then_not_taken(tmp_path):
    wrong = resends(lambda r: replace(r, seeds=[s[:-1] + bytes([s[-1] ^ 1]) for s in r.seeds]))
    with pytest.raises(RoundError, match=r"weights add up to|cannot be recovered"):
        run(settings_in(tmp_path), {(0, SECAGG_UNMASK): wrong})


def test_a_masked_vector_of_another_length_is_refused(tmp_path):
    def cut(message, context):
        reply = real(message, context)
        vector = messages.decode_arrays(messages.arrays_of(reply.content))[MASKED]
        record = MaskedReport.decode(reply.content)
        return messages.reply(message, record, {MASKED: vector[:-1]})

    folder, _ = run(settings_in(tmp_path), {(2, SECAGG_MASK): cut})
    [line] = lines(folder)
    assert "no masked vector of" in line["rejected"][0]["reason"]
    assert line["secure_sums"][0]["masked"] == 4
