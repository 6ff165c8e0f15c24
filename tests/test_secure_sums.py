"""Secure sums in whole rounds: the same models, every dropout handled, no step answered twice."""

import json
import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from safetensors.numpy import load_file
from scipy.stats import chi2

from client_app import secure_sums
from client_app.app import app as real
from client_app.keeping import keeper_of
from client_app.site import simulated_federation
from client_app.trust import identity_of
from common import messages
from common import models as networks
from common.config import Settings
from common.errors import ConfigError, RoundError
from common.identity import Identity, fingerprint
from common.messages import Order, TrainReport
from common.neighbours import wiring
from common.secure_sum import Keys, occasion_of
from common.sum_messages import (
    MASK,
    MASKED,
    SHARE,
    TRAIN_FOR_SUM,
    UNMASK,
    MaskedReport,
    SealedShares,
    SumCircle,
    SumDisclosure,
    SumKeys,
    SumOrder,
    SumSurvivors,
)
from deploy.simulation import InProcessGrid, load_client_app, simulate
from server_app import app as server
from server_app import methods, summable
from server_app.routing import average
from server_app.selection import Cohort


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    """Pictures take longer than the rounds; one test writes them."""
    monkeypatch.setattr(server.report, "write_report", lambda folder: None)


STEPS = (TRAIN_FOR_SUM, SHARE, MASK, UNMASK)


def settings_in(folder, **words):
    values = {
        "num-clients": 5,
        "strategy": "fedavg",
        "num-server-rounds": 1,
        "local-epochs": 1,
        "secagg": True,
        "workers": 1,
        "output-dir": str(folder),
    }
    changes = {key.replace("_", "-"): value for key, value in words.items()}
    return Settings.parse(values | changes).with_absolute_paths()


class Watching(InProcessGrid):
    """A grid that remembers every message and reply, all of them through real serialisation."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.sent, self.replies = [], []

    def send_and_receive(self, messages, *, timeout=None):
        sent = [message_from_proto(message_to_proto(message)) for message in messages]
        self.sent += sent
        replies = [
            message_from_proto(message_to_proto(reply))
            for reply in super().send_and_receive(sent, timeout=timeout)
        ]
        self.replies += replies
        return replies

    def masked(self):
        return [
            messages.decode_arrays(messages.arrays_of(reply.content))[MASKED]
            for reply in self.replies
            if reply.metadata.message_type == MASK and not reply.has_error()
        ]


def misbehaving(changes):
    """Coterie's ClientApp, but ``changes[partition, kind](message, context)`` replies instead."""

    def answer(message, context):
        key = context.node_config["partition-id"], message.metadata.message_type
        return changes.get(key, real)(message, context)

    return lambda: answer


def raises(message, context):
    raise RuntimeError("no power")


def run(settings, changes=None):
    """Run a federation; return its folder and the grid that watched it."""
    _, sites = simulated_federation(settings)
    load = misbehaving(changes) if changes else load_client_app
    with Watching(load, settings.to_dict(), num_nodes=len(sites), workers=1) as grid:
        context = Context(1, 1, {}, RecordDict(), settings.to_dict())
        try:
            server.app(grid, context)
        finally:
            grid.folder = server.run_folder_of(context)
    return grid.folder, grid


def lines(folder, name="rounds"):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def model_of(folder, name="model-0"):
    return load_file(folder / "models" / f"{name}.safetensors")


def assert_equal_to_fixed_point(found, expected, sites=5, rows=1438):
    """Each site rounds once, to 2^-24 of the sum; the mean is then rounded to float32."""
    for name, value in expected.items():
        bound = 0.5 * sites / rows * 2.0**-24 + np.finfo(np.float32).eps * np.abs(value)
        assert (np.abs(found[name].astype(np.float64) - value) <= bound).all()


def trained_directly(settings, sites, attempt=1):
    """What some sites train in round 1, in the clear."""
    settings = settings.replace(secagg=False)
    initial = networks.initial_parameters(settings, (1, 8, 8), 10)
    content = messages.content(Order(1, attempt, 0), messages.encode_arrays(initial))
    number = settings.num_clients
    with InProcessGrid(load_client_app, settings.to_dict(), num_nodes=number, workers=1) as grid:
        nodes = list(grid.get_node_ids())
        replies = grid.send_and_receive(
            [Message(content, nodes[site], messages.TRAIN) for site in sites]
        )
    reports = [TrainReport.decode(reply.content) for reply in replies]
    arrays = [messages.decode_arrays(messages.arrays_of(reply.content)) for reply in replies]
    return arrays, np.array([report.num_examples for report in reports]), reports


# The same model ----------------------------------------------------------------------------------


def test_fedavg_gives_the_same_model_with_and_without(tmp_path, monkeypatch):
    monkeypatch.undo()
    plain = simulate(settings_in(tmp_path, secagg=False))
    masked, grid = run(settings_in(tmp_path))
    assert_equal_to_fixed_point(model_of(masked), model_of(plain))
    [a], [b] = lines(plain), lines(masked)
    for key in ("accuracy", "trained", "rejected", "missing", "uplink_share"):
        assert a[key] == b[key]
    assert b["train_loss"] == pytest.approx(a["train_loss"], abs=1e-7)
    kinds = Counter(message.metadata.message_type for message in grid.sent)
    assert kinds == dict.fromkeys(("query.introduce", *STEPS, messages.EVALUATE), 5)


def test_a_model_per_cluster_and_any_number_of_workers(tmp_path):
    words = {
        "num_clients": 8,
        "strategy": "similarity",
        "num_clusters": 2,
        "routing": "per-cluster",
        "selection": "all",
        "num_server_rounds": 3,
        "seed": 1,
    }
    plain = simulate(settings_in(tmp_path, secagg=False, **words))
    one, two = (simulate(settings_in(tmp_path, workers=n, **words)) for n in (1, 2))
    sums = lines(one)[-1]["secure_sums"]
    assert [(s["model"], s["reason"]) for s in sums] == [(0, ""), (1, "")]
    assert all(3 <= s["unmasked"] == s["asked"] < 8 for s in sums)
    for cluster in ("cluster-0", "cluster-1"):
        found, expected = model_of(one, cluster), model_of(plain, cluster)
        again = model_of(two, cluster)
        for name in expected:
            np.testing.assert_array_equal(found[name], again[name])
            # Three rounds of training amplify the last digit.
            np.testing.assert_allclose(found[name], expected[name], atol=2e-5)
    assert lines(one)[-1]["accuracy"] == pytest.approx(lines(plain)[-1]["accuracy"], abs=0.01)


def test_weights_that_the_server_chooses_go_inside_the_mask(tmp_path):
    words = {"strategy": "clustered-sampling-size", "clients_per_round": 6, "num_clients": 8}
    plain = simulate(settings_in(tmp_path, secagg=False, **words))
    masked, grid = run(settings_in(tmp_path, **words))
    orders = [
        SumOrder.decode(m.content) for m in grid.sent if m.metadata.message_type == TRAIN_FOR_SUM
    ]
    assert sum(order.weight for order in orders) == lines(masked)[0]["secure_sums"][0]["weight"]
    assert_equal_to_fixed_point(model_of(masked), model_of(plain), len(orders), len(orders))


def test_weights_are_whole_numbers_in_the_same_ratios():
    clients = np.arange(3)
    assert summable.whole_weights(Cohort(clients)) is None
    assert summable.whole_weights(Cohort(clients, np.array([1, 2, 3]) / 6)) == {0: 1, 1: 2, 2: 3}
    assert summable.whole_weights(Cohort(clients, np.array([0.5, 0.5, 0.5]))) == {0: 1, 1: 1, 2: 1}
    with pytest.raises(RoundError, match=r"not ratios|no common measure"):
        summable.whole_weights(Cohort(clients, np.array([np.pi, np.e, 1.0])))


def test_the_objective_of_the_sites_and_the_servers_step_stay_what_they_are(tmp_path):
    for words in (
        {"objective": "pfedme", "pfedme_beta": 0.5, "learning_rate": 0.02},
        {"objective": "ditto"},
    ):
        plain = simulate(settings_in(tmp_path, secagg=False, **words))
        masked = simulate(settings_in(tmp_path, **words))
        assert_equal_to_fixed_point(model_of(masked), model_of(plain))
        assert lines(masked)[0]["accuracy"] == lines(plain)[0]["accuracy"]


def test_noise_of_the_sites_goes_under_the_mask_and_their_losses_stay_with_them(tmp_path):
    words = {"update_privacy": "local-dp", "update_epsilon": 1000, "clip_norm": 5.0}
    folder, _ = run(settings_in(tmp_path, **words))
    plain, _ = run(settings_in(tmp_path, secagg=False))
    found, expected = model_of(folder), model_of(plain)
    for name in expected:  # the noise is small and drawn anew
        np.testing.assert_allclose(found[name], expected[name], atol=2.0)
        assert not np.array_equal(found[name], expected[name])
    [line] = lines(folder)
    assert (line["train_loss"], line["secure_sums"][0]["loss"]) == (None, None)
    [entry] = [
        entry
        for entry in json.loads((folder / "privacy.json").read_text())["releases"]
        if entry["kind"] == MASK
    ]
    assert entry["mechanism"].startswith("Gaussian, clipped to 5")
    assert entry["mechanism"].endswith("masked, for a sum of at least 4 sites")
    assert entry["epsilon"] > 0


# Dropouts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STEPS)
def test_one_of_five_drops_out_at_any_step(tmp_path, kind):
    settings = settings_in(tmp_path)
    folder, _ = run(settings, {(2, kind): raises})
    counted = range(5) if kind == UNMASK else [0, 1, 3, 4]
    arrays, rows, _ = trained_directly(settings, counted)
    assert_equal_to_fixed_point(model_of(folder), average(arrays, rows))
    [line] = lines(folder)
    assert line["trained"] == [f"site-{i}" for i in counted]
    assert line["rejected"][0]["site"] == "site-2"
    assert "no power" in line["rejected"][0]["reason"]
    [record] = line["secure_sums"]
    left = [record[key] for key in ("advertised", "shared", "masked", "unmasked")]
    place = STEPS.index(kind)
    assert left == [5] * place + [4] * (4 - place)


@pytest.mark.parametrize("kind", STEPS)
def test_two_of_five_are_too_many_and_end_in_a_clean_abort(tmp_path, kind):
    """The server stops; before the last step it then asks nobody to unmask anything."""
    grids = []

    def watch(*args, **more):
        grids.append(Watching(*args, **more))
        return grids[-1]

    settings = settings_in(tmp_path)
    with watch(
        misbehaving({(site, kind): raises for site in (1, 3)}),
        settings.to_dict(),
        num_nodes=5,
        workers=1,
    ) as grid:
        context = Context(1, 1, {}, RecordDict(), settings.to_dict())
        simulated_federation(settings)
        with pytest.raises(RoundError, match=r"model 0: .*(4 are needed|cannot be recovered)"):
            server.app(grid, context)
    first, second = lines(server.run_folder_of(context))
    assert (first["trained"], second["trained"]) == ([], [])
    assert second["attempt"] == 2
    asked_to_unmask = [m for m in grid.sent if m.metadata.message_type == UNMASK]
    assert bool(asked_to_unmask) == (kind == UNMASK)
    told = [
        SumDisclosure.decode(reply.content)
        for reply in grid.replies
        if reply.metadata.message_type == UNMASK and not reply.has_error()
    ]
    # In each attempt three shares of every seed, of which four are needed, and of no key.
    assert len(told) == (6 if kind == UNMASK else 0)
    assert not any(disclosure.keys for disclosure in told)


def test_a_quorum_above_the_threshold_is_kept(tmp_path):
    settings = settings_in(tmp_path, quorum=1.0)
    with pytest.raises(RoundError, match="4 masked vectors arrived, at least 5"):
        run(settings, {(2, MASK): raises})


def test_an_aborted_sum_is_followed_by_fresh_keys_and_a_fresh_update(tmp_path):
    settings = settings_in(tmp_path)

    def at_first(message, context):
        if SealedShares.decode(message.content).attempt == 1:
            raise RuntimeError("no power")
        return real(message, context)

    folder, grid = run(settings, {(1, MASK): at_first, (3, MASK): at_first})
    assert [line["attempt"] for line in lines(folder)] == [1, 2]
    arrays, rows, _ = trained_directly(settings, range(5), attempt=2)
    assert_equal_to_fixed_point(model_of(folder), average(arrays, rows))
    first, _, _ = trained_directly(settings, range(5), attempt=1)
    assert not np.array_equal(first[0]["output.bias"], arrays[0]["output.bias"])
    keys = [
        key
        for reply in grid.replies
        if reply.metadata.message_type == TRAIN_FOR_SUM
        for key in SumKeys.decode(reply.content).keys
    ]
    assert len(set(keys)) == len(keys) == 20


# What the server sees ----------------------------------------------------------------------------


def chi_square(vector):
    counts = np.bincount(vector.view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    return chi2.sf(((counts - expected) ** 2 / expected).sum(), 255)


def test_masked_vectors_on_the_wire_are_uniform_and_fresh_in_every_run(tmp_path):
    settings = settings_in(tmp_path)
    (first, one), (second, two) = run(settings), run(settings)
    assert all(chi_square(vector) > 1e-10 for vector in one.masked() + two.masked())
    for a, b in zip(one.masked(), two.masked(), strict=True):
        # The same update under other masks: what is left has nothing of it either.
        assert chi_square(a - b) > 1e-10
    assert chi_square(np.frombuffer(model_of(first)["output.weight"].tobytes(), np.uint8)) < 1e-10
    for name, value in model_of(first).items():
        np.testing.assert_array_equal(value, model_of(second)[name])


def test_nothing_that_leaves_a_site_depends_on_its_update_but_under_the_mask(tmp_path):
    """Sizes and kinds of replies are equal for a model that was trained and one that was not."""
    shapes = []
    for rate in (0.05, 1e-9):
        _, grid = run(settings_in(tmp_path, learning_rate=rate))
        shapes.append(
            [
                (reply.metadata.message_type, messages.payload_bytes(reply.content))
                for reply in grid.replies
                if reply.metadata.message_type in STEPS
            ]
        )
    assert shapes[0] == shapes[1]


def test_every_byte_is_counted_by_site_and_phase(tmp_path):
    folder, grid = run(settings_in(tmp_path))
    found = Counter()
    for line in lines(folder, "clients"):
        found[line["phase"], "down"] += line["bytes_down"]
        found[line["phase"], "up"] += line["bytes_up"]
    kinds = (messages.INTRODUCE, *STEPS, messages.EVALUATE)
    names = ("introduce", "train", "share", "mask", "unmask", "evaluate")
    phases = dict(zip(kinds, names, strict=True))
    expected = Counter()
    for way, passed in (("down", grid.sent), ("up", grid.replies)):
        for message in passed:
            size = messages.payload_bytes(message.content)
            expected[phases[message.metadata.message_type], way] += size
    assert found == expected
    [line] = lines(folder)
    assert line["bytes_up"] == sum(n for (_, way), n in found.items() if way == "up")
    assert {"share", "mask", "unmask"} <= line["seconds"].keys()
    size = sum(value.size for value in model_of(folder).values())
    masks = [line for line in lines(folder, "clients") if line["phase"] == "mask"]
    assert all(8 * size < line["bytes_up"] < 8 * size + 1000 for line in masks)


def test_what_left_each_site_is_listed_with_its_protection(tmp_path):
    folder, _ = run(settings_in(tmp_path))
    releases = {
        entry["kind"]: entry["mechanism"]
        for entry in json.loads((folder / "privacy.json").read_text())["releases"]
    }
    assert releases[MASK] == "masked, for a sum of at least 4 sites"
    assert releases[SHARE] == "sealed for other sites"
    assert messages.TRAIN not in releases


# A site that cannot take part --------------------------------------------------------------------


def trains_to(value):
    """A site whose training ended in some number: the guard of the plain path moved to the site."""

    def train(message, context):
        learned = secure_sums.personal.train

        def spoilt(parameters, site, order):
            result = learned(parameters, site, order)
            arrays = {name: np.full_like(v, value) for name, v in result.shared.items()}
            return replace(result, shared=arrays)

        secure_sums.personal.train = spoilt
        try:
            return real(message, context)
        finally:
            secure_sums.personal.train = learned

    return train


@pytest.mark.parametrize(("value", "said"), [(np.nan, "holds NaN"), (1e30, "leave room for")])
def test_a_site_refuses_to_mask_what_is_not_in_range(tmp_path, value, said):
    settings = settings_in(tmp_path)
    folder, _ = run(settings, {(2, TRAIN_FOR_SUM): trains_to(value)})
    [line] = lines(folder)
    [rejected] = line["rejected"]
    assert (rejected["site"], rejected["phase"]) == ("site-2", "train")
    assert said in rejected["reason"]
    arrays, rows, _ = trained_directly(settings, [0, 1, 3, 4])
    assert_equal_to_fixed_point(model_of(folder), average(arrays, rows))


def resends(change):
    """A site that replaces the record of its reply."""

    def answer(message, context):
        reply = real(message, context)
        kind = {TRAIN_FOR_SUM: SumKeys, SHARE: SealedShares, UNMASK: SumDisclosure}[
            message.metadata.message_type
        ]
        return messages.reply(message, change(kind.decode(reply.content)))

    return answer


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (TRAIN_FOR_SUM, lambda r: replace(r, site="site-4"), "signed 'site-4'"),
        (TRAIN_FOR_SUM, lambda r: replace(r, keys=r.keys[:1]), "signature"),
        (TRAIN_FOR_SUM, lambda r: replace(r, keys=[r.keys[0], os.urandom(32)]), "signature"),
        (TRAIN_FOR_SUM, lambda r: replace(r, signature=r.signature[:-1]), "cut short"),
        (TRAIN_FOR_SUM, lambda r: replace(r, seconds=-1.0), "seconds"),
        (SHARE, lambda r: replace(r, round=2), "of round 2"),
        (SHARE, lambda r: replace(r, sites=r.sites[1:], sealed=r.sealed[1:]), "neighbours"),
        (SHARE, lambda r: replace(r, sealed=[b"x" * 10**6] * 4), "bytes, at most"),
        (UNMASK, lambda r: replace(r, seeds=[s[:-1] for s in r.seeds]), "another length"),
        (UNMASK, lambda r: replace(r, survivors=r.others, seeds=r.keys), "not asked for"),
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
        run(settings_in(tmp_path), {(0, UNMASK): wrong})


def test_a_masked_vector_of_another_length_is_refused(tmp_path):
    def cut(message, context):
        reply = real(message, context)
        vector = messages.decode_arrays(messages.arrays_of(reply.content))[MASKED]
        record = MaskedReport.decode(reply.content)
        return messages.reply(message, record, {MASKED: vector[:-1]})

    folder, _ = run(settings_in(tmp_path), {(2, MASK): cut})
    [line] = lines(folder)
    assert "no masked vector of" in line["rejected"][0]["reason"]
    assert line["secure_sums"][0]["masked"] == 4


# A site's side, message by message ---------------------------------------------------------------


class Play:
    """Five sites and a server that may send them anything."""

    def __init__(self, folder, **node_config):
        self.settings = settings_in(folder)
        simulated_federation(self.settings)
        self.grid = InProcessGrid(
            load_client_app,
            self.settings.to_dict(),
            num_nodes=5,
            workers=1,
            node_config=node_config,
        )
        self.nodes = list(self.grid.get_node_ids())
        self.names = [f"site-{i}" for i in range(5)]
        initial = networks.initial_parameters(self.settings, (1, 8, 8), 10)
        self.arrays = messages.encode_arrays(initial)

    def ask(self, kind, site, record, arrays=None):
        content = messages.content(record, arrays)
        [reply] = self.grid.send_and_receive([Message(content, self.nodes[site], kind)])
        return reply

    def train(self, site, server_round=1, attempt=1, members=5):
        order = SumOrder(server_round, attempt, 0, members, 500, 0)
        return self.ask(TRAIN_FOR_SUM, site, order, self.arrays)

    def circle(self, server_round=1, attempt=1):
        keys = [
            SumKeys.decode(self.train(site, server_round, attempt).content) for site in range(5)
        ]
        return SumCircle(
            server_round,
            attempt,
            0,
            self.names,
            [1, 2, 3, 4, 5],
            [k.identity_key for k in keys],
            [k.keys[0] for k in keys],
            [k.keys[1] for k in keys],
            [k.signature for k in keys],
        )

    def dealt(self, circle):
        return {
            name: SealedShares.decode(self.ask(SHARE, place, circle).content)
            for place, name in enumerate(self.names)
        }

    def delivery(self, dealt, site, **changes):
        name = self.names[site]
        sealed = {
            peer: shares.sealed[shares.sites.index(name)]
            for peer, shares in dealt.items()
            if peer != name
        }
        shares = SealedShares(name, 1, 1, 0, list(sealed), list(sealed.values()))
        return replace(shares, **changes)


@pytest.fixture
def play(tmp_path):
    return Play(tmp_path)


def said(reply):
    assert reply.has_error(), reply.content
    return reply.error.reason


def test_each_step_is_answered_once_and_in_its_turn(play):
    circle = play.circle()
    assert "out of turn" in said(play.train(0))
    survivors = SumSurvivors(1, 1, 0, play.names)
    assert "out of turn" in said(play.ask(UNMASK, 0, survivors))
    assert "out of turn" in said(play.ask(MASK, 0, SealedShares("site-0", 1, 1, 0, [], [])))
    dealt = play.dealt(circle)
    assert "out of turn" in said(play.ask(SHARE, 0, circle))
    delivery = play.delivery(dealt, 0)
    assert not play.ask(MASK, 0, delivery).has_error()
    assert "out of turn" in said(play.ask(MASK, 0, delivery))
    told = SumDisclosure.decode(play.ask(UNMASK, 0, survivors).content)
    assert sorted(told.survivors) == play.names
    # A second request, for the other kind of share of site-4, gets nothing.
    others = SumSurvivors(1, 1, 0, play.names[:4])
    assert "out of turn" in said(play.ask(UNMASK, 0, others))
    assert "out of turn" in said(play.train(0))
    assert not play.train(0, attempt=2).has_error()
    assert "out of turn" in said(play.train(0, attempt=1))
    assert not play.train(0, server_round=2).has_error()


def test_steps_of_another_sum_are_out_of_turn(play):
    circle = play.circle()
    for other in (replace(circle, round=2), replace(circle, attempt=2), replace(circle, model=1)):
        assert "out of turn" in said(play.ask(SHARE, 0, other))


def test_secrets_are_gone_after_the_last_step_and_after_a_restart(play):
    dealt = play.dealt(play.circle())
    states = [context.state for context in play.grid._contexts.values()]
    assert all("secure-sum" in state for state in states)
    assert not play.ask(MASK, 0, play.delivery(dealt, 0)).has_error()
    record = states[0]["secure-sum"]
    assert {record[key] for key in ("vector", "seed", "sealing", "masking")} == {b""}
    play.ask(UNMASK, 0, SumSurvivors(1, 1, 0, play.names))
    assert "secure-sum" not in states[0]
    assert "secure-sum-circle" not in states[0]
    kept = states[1]["kept"]
    play.grid._contexts[play.nodes[1]].state = RecordDict({"kept": kept})
    assert "secrets of this sum are gone" in said(play.ask(MASK, 1, play.delivery(dealt, 1)))


def test_of_two_processes_with_the_same_state_one_answers(tmp_path):
    """A site's files outlive a process: a copy of its state from before a step is of no use."""
    play = Play(tmp_path, **{"state-dir": str(tmp_path / "state")})
    # All five share one folder here, so only site-0 takes part.
    assert not play.train(0).has_error()
    state = play.grid._contexts[play.nodes[0]].state
    assert "secure-sum" in state
    assert "kept" not in state
    assert "out of turn" in said(play.train(0))
    assert json.loads((tmp_path / "state" / "secure-sum-step.json").read_bytes())[1] == 0


def swapped(values):
    return [values[1], values[0], *values[2:]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: {"sealing_keys": swapped(c.sealing_keys)}, "this site advertised"),
        (lambda c: {"sites": swapped(c.sites)}, "this site advertised"),
        (lambda c: {"masking_keys": [*c.masking_keys[:4], os.urandom(32)]}, "signature"),
        (lambda c: {"signatures": [*c.signatures[:4], os.urandom(64)]}, "signature"),
        (lambda c: {"signatures": [*c.signatures[:4], b""]}, "cut short"),
        (lambda c: {"sites": [*c.sites[:3], "site-9", "site-8"]}, "signature"),
        (lambda c: {"positions": [1, 2, 3, 4, 4]}, "distinct"),
    ],
)
def test_circles_with_swapped_or_foreign_keys_are_refused(play, change, reason):
    circle = play.circle()
    assert reason in said(play.ask(SHARE, 0, replace(circle, **change(circle))))
    assert "out of turn" in said(play.ask(SHARE, 0, circle))  # it had its chance


@pytest.mark.parametrize(
    "change", [{"positions": [1, 2, 3, 4]}, {"sites": [f"site-{i % 4}" for i in range(5)]}]
)
def test_lists_that_do_not_belong_together_are_refused(play, change):
    bad = object.__new__(SumCircle)
    bad.__dict__.update(vars(play.circle()) | change)
    assert "named twice, or the entries are not one for each" in said(play.ask(SHARE, 0, bad))


def test_a_circle_that_is_too_small_or_too_large_is_refused(play):
    circle = play.circle()
    fields = ("sites", "positions", "identity_keys", "sealing_keys", "masking_keys", "signatures")
    three = replace(circle, **{name: getattr(circle, name)[:3] for name in fields})
    assert "4 are needed" in said(play.ask(SHARE, 0, three))
    assert "at least 3 must be in one" in said(play.train(1, attempt=2, members=2))
    assert not play.train(1, attempt=3, members=4).has_error()
    assert "5 sites, 4 were asked" in said(play.ask(SHARE, 1, replace(circle, attempt=3)))


def test_shares_that_were_changed_or_swapped_are_refused(play):
    dealt = play.dealt(play.circle())
    good = play.delivery(dealt, 0)
    swap = play.delivery(dealt, 0, sealed=swapped(good.sealed))
    cut = play.delivery(dealt, 1)
    cut = replace(cut, sealed=[cut.sealed[0][:-1], *cut.sealed[1:]])
    foreign = replace(play.delivery(dealt, 3), site="site-2")
    few = play.delivery(dealt, 3)
    few = replace(few, sites=few.sites[:2], sealed=few.sealed[:2])
    for site, bad, reason in (
        (0, swap, "altered, cut short"),
        (1, cut, "altered, cut short"),
        (2, foreign, "no neighbour"),
        (3, few, "too few"),
        (4, play.delivery(dealt, 3), "dealt to 'site-3'"),
    ):
        assert reason in said(play.ask(MASK, site, bad))


def test_survivors_that_cannot_be_are_refused(play):
    dealt = play.dealt(play.circle())
    for site, names, reason in (
        (0, play.names[:3], "3 survivors, at least 4"),
        (1, ["site-0", *play.names[2:]], "not this member"),
        (2, [*play.names, "site-9"], "'site-9' dealt no shares"),
    ):
        assert not play.ask(MASK, site, play.delivery(dealt, site)).has_error()
        assert reason in said(play.ask(UNMASK, site, SumSurvivors(1, 1, 0, names)))


def test_sites_that_pin_each_other_take_no_other_keys(play):
    """As real sites do: fingerprints of their own configuration, never the run's word."""
    for site in range(5):
        play.train(site)
    contexts = [play.grid._contexts[node] for node in play.nodes]
    prints = {
        name: fingerprint(identity_of(keeper_of(context)).public)
        for name, context in zip(play.names, contexts, strict=True)
    }
    listed = ",".join(f"{name}:{digits}" for name, digits in prints.items())
    wrong = listed.replace(prints["site-4"], prints["site-3"])
    lacking = listed.rpartition(",")[0]
    for context, peers in zip(contexts, (listed, wrong, lacking, listed, listed), strict=True):
        context.node_config["peers"] = peers
    circle = play.circle(attempt=2)
    assert not play.ask(SHARE, 0, circle).has_error()
    assert "'site-4' signs with the key" in said(play.ask(SHARE, 1, circle))
    assert "no fingerprint of 'site-4' is pinned" in said(play.ask(SHARE, 2, circle))
    # Keys that the server made up, under an identity that it made up.
    keys, identity = Keys.generate(), Identity.generate()
    signed = keys.signed(identity, "site-4", occasion_of(1, 1, 2, 0))
    forged = replace(
        circle,
        identity_keys=[*circle.identity_keys[:4], signed.identity_key],
        sealing_keys=[*circle.sealing_keys[:4], signed.keys[0]],
        masking_keys=[*circle.masking_keys[:4], signed.keys[1]],
        signatures=[*circle.signatures[:4], signed.signature],
    )
    assert "'site-4' signs with the key" in said(play.ask(SHARE, 3, forged))


def test_a_site_may_release_masked_models_only(tmp_path):
    play = Play(tmp_path, releases="masked-model")
    assert not play.train(0).has_error()
    reply = play.ask(messages.TRAIN, 0, Order(1, 1, 0), play.arrays)
    assert "does not release 'model'" in said(reply)
    play = Play(tmp_path, releases="model,loss")
    assert "does not release 'masked-model'" in said(play.train(0))


def test_a_run_that_goes_on_after_a_crash_trains_by_fresh_draws(play):
    order = Order(4, 1, 0)
    assert secure_sums._fresh(order, play.settings) == order
    resumed = play.settings.replace(resume="/some/run")
    first, second = (secure_sums._fresh(order, resumed) for _ in range(2))
    assert (first.round, first.model) == (4, 0)
    assert len({first.attempt, second.attempt, order.attempt}) == 3


def test_a_run_that_was_cut_off_goes_on_with_fresh_sums(tmp_path):
    settings = settings_in(tmp_path, num_server_rounds=2)

    def off(message, context):
        if SumOrder.decode(message.content).round == 2:
            raise RuntimeError("no power")
        return real(message, context)

    with pytest.raises(RoundError, match="4 are needed"):
        run(settings, {(site, TRAIN_FOR_SUM): off for site in range(3)})
    [folder] = tmp_path.iterdir()
    again, grid = run(settings.replace(resume=str(folder)))
    assert again == folder
    assert [line["round"] for line in lines(folder) if line["trained"]] == [1, 2]
    asked = [m for m in grid.sent if m.metadata.message_type == TRAIN_FOR_SUM]
    assert {SumOrder.decode(message.content).round for message in asked} == {2}
    # The same sites from the same model in the same round, but by other draws.
    uncut, _ = run(settings_in(tmp_path / "uncut", num_server_rounds=2))
    found, expected = model_of(folder), model_of(uncut)
    assert not np.allclose(found["output.weight"], expected["output.weight"], atol=1e-4)
    np.testing.assert_allclose(found["output.weight"], expected["output.weight"], atol=0.2)


@pytest.mark.slow
def test_more_than_a_hundred_sites_share_masks_with_neighbours_only(tmp_path):
    words = {"num_clients": 104, "split": "iid"}
    plain = simulate(settings_in(tmp_path, secagg=False, **words))
    gone = {(site, MASK): raises for site in range(0, 60, 3)}
    masked, grid = run(settings_in(tmp_path, **words), gone)
    [record] = lines(masked)[0]["secure_sums"]
    assert (record["reason"], record["advertised"], record["masked"]) == ("", 104, 84)
    circles = [
        SumCircle.decode(message.content)
        for message in grid.sent
        if message.metadata.message_type == SHARE
    ]
    assert {len(circle.sites) for circle in circles} == {wiring(104).degree + 1}
    assert wiring(104).degree < 103
    found, expected = model_of(masked), model_of(plain)
    # Of fewer sites, so near the other and not equal to it.
    np.testing.assert_allclose(found["output.weight"], expected["output.weight"], atol=0.05)


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
    methods.build(Settings.parse(words | {"secagg": True}))


def test_clusters_that_are_too_small_for_a_model_are_refused_before_anybody_trains(tmp_path):
    settings = settings_in(
        tmp_path, strategy="similarity", num_clusters=2, routing="per-cluster", selection="all"
    )
    with pytest.raises(
        RoundError, match=r"model \d is trained by \d of the sites, an average needs 3"
    ):
        run(settings)
    [folder] = tmp_path.iterdir()
    kinds = {
        entry["kind"] for entry in json.loads((folder / "privacy.json").read_text())["releases"]
    }
    assert kinds == {messages.INTRODUCE, messages.LABEL_HISTOGRAM}


def test_a_model_whose_cohort_is_too_small_stays_as_it_is(tmp_path, caplog):
    """The worse half of a cluster can be fewer than three; the other cluster goes on."""
    settings = settings_in(
        tmp_path,
        num_clients=12,
        strategy="similarity",
        num_clusters=2,
        routing="per-cluster",
        selection="worst",
        seed=3,
    )
    folder, _ = run(settings)
    [line] = lines(folder)
    asked = {s["model"]: s["asked"] for s in line["secure_sums"]}
    small = [model for model, count in asked.items() if count < 3]
    assert len(small) == 1
    initial = networks.initial_parameters(settings, (1, 8, 8), 10)
    kept = model_of(folder, f"cluster-{small[0]}")
    assert all(np.array_equal(kept[name], initial[name]) for name in initial)
    assert "stays as it is" in caplog.text
    moved = model_of(folder, f"cluster-{1 - small[0]}")
    assert not np.array_equal(moved["output.bias"], initial["output.bias"])


def test_single_models_are_seen_in_the_round_of_the_clustering_alone(tmp_path):
    settings = settings_in(
        tmp_path,
        num_clients=8,
        strategy="random-clusters",
        num_clusters=2,
        cluster_at_round=2,
        num_server_rounds=3,
        selection="all",
        seed=4,
    )
    folder, grid = run(settings)
    kinds = [m.metadata.message_type for m in grid.sent if m.metadata.message_type != SHARE]
    trained = [kind for kind in kinds if kind.startswith("train")]
    assert trained == [TRAIN_FOR_SUM] * 8 + [messages.TRAIN] * 8 + [TRAIN_FOR_SUM] * 8
    assert [len(line.get("secure_sums", [])) for line in lines(folder)] == [1, 0, 2]
