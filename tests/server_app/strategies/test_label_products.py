"""Inner products of label counts: the same cohorts as in the clear, taken once, checked."""

import json

import numpy as np
import pytest
from small_runs import lines, settings_in
from wires import SITES, Wire, on

from client_app.answers import two_party_rows
from common import config, messages
from common.errors import RoundError
from common.two_party.messages import (
    LABEL_SHARES,
    LABELS,
    PRODUCTS,
    TWO_PARTY_KEYS,
    TWO_PARTY_SHARE,
    TwoPartyOffer,
    TwoPartyOrder,
)
from deploy.simulation.grid import simulate
from server_app.protection.two_party import two_party_products
from server_app.record import checkpoint
from server_app.rounds.roster import introduce
from server_app.strategies.label_products import LabelProducts

WORDS = (
    *("strategy=balanced-cohort", "clients-per-round=3", "num-clients=8"),
    *("num-server-rounds=4", "dirichlet-alpha=0.3", "workers=1"),
)


pytestmark = pytest.mark.usefixtures("no_report")


def learnt(folder):
    _, state = checkpoint.latest(folder)
    return state["strategy"]


def kinds(folder):
    releases = json.loads((folder / "privacy.json").read_text())["releases"]
    return {release["kind"] for release in releases}


def trained(folder):
    return [line["trained"] for line in lines(folder, "rounds.jsonl")]


@pytest.fixture
def hardly_any_noise(monkeypatch):
    """Let small sites take part at any epsilon, so that exact products can be looked at."""
    monkeypatch.setattr(two_party_rows, "FEW_ROWS", 0)


@pytest.mark.usefixtures("hardly_any_noise")
def test_cohorts_are_those_in_the_clear_and_no_histogram_leaves_a_site(tmp_path):
    pairs, clear = (
        simulate(settings_in(tmp_path, *WORDS, "epsilon=100", f"label-privacy={privacy}"))
        for privacy in ("two-party", "none")
    )
    assert trained(pairs) == trained(clear)
    counts = learnt(clear)["counts"]
    shares = counts / counts.sum(axis=1, keepdims=True)
    found = learnt(pairs)["shares-gram"]
    assert found == pytest.approx(shares @ shares.T, abs=3e-6)
    assert np.diagonal(found) == pytest.approx((shares**2).sum(axis=1), abs=1e-12)
    assert messages.LABEL_HISTOGRAM in kinds(clear)
    assert messages.LABEL_HISTOGRAM not in kinds(pairs)
    assert TWO_PARTY_SHARE in kinds(pairs)


@pytest.mark.usefixtures("hardly_any_noise")
def test_resumed_run_goes_on_with_the_products_it_has(tmp_path, monkeypatch):
    def stopped(self, server_round):
        if server_round == 2:
            raise RoundError("stopped")

    words = (*WORDS, "epsilon=100", "label-privacy=two-party")
    with monkeypatch.context() as patch:
        patch.setattr(LabelProducts, "after_round", stopped)
        with pytest.raises(RoundError, match="stopped"):
            simulate(settings_in(tmp_path, *words))
    [folder] = tmp_path.iterdir()
    before = learnt(folder)["shares-gram"]
    simulate(config.load(folder / "config.toml", [f"resume={folder}"]))
    assert np.array_equal(learnt(folder)["shares-gram"], before)
    assert trained(folder) == trained(simulate(settings_in(tmp_path, *words)))


@pytest.mark.parametrize("noise", ["gaussian", "k-rr"])
def test_noisy_histograms_do_as_well(tmp_path, noise):
    folder = simulate(settings_in(tmp_path, *WORDS, f"label-privacy={noise}", "epsilon=8"))
    assert all(len(sites) == 3 for sites in trained(folder))
    assert learnt(folder)["counts"].min() >= 0


def test_sites_keep_their_updates_to_themselves_with_the_cohorts_own_weights(tmp_path):
    """Weights by labels are whole numbers, which secure sums can take."""
    plain, summed = (
        simulate(settings_in(tmp_path, *WORDS, f"secagg={masked}")) for masked in ("false", "true")
    )
    accuracies = [
        [line["accuracy"] for line in lines(folder, "rounds.jsonl")] for folder in (plain, summed)
    ]
    assert trained(plain) == trained(summed)
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.01)


# What a site says of itself ----------------------------------------------------------------------


@pytest.fixture
def wire(tmp_path):
    settings = settings_in(
        tmp_path, *WORDS[:2], "label-privacy=two-party", "epsilon=0.25", f"num-clients={SITES}"
    )
    with Wire(settings) as grid:
        yield grid


def play(wire, purpose=LABEL_SHARES):
    order = TwoPartyOrder(purpose=purpose, round=0, reveal=PRODUCTS)
    return two_party_products(order, introduce(wire, expected=SITES, timeout=60), wire, 60)


def test_small_sites_take_no_part_with_little_noise(wire):
    """Of 366 rows; with 500 or more of them nobody is asked to be careful."""
    for node in range(SITES):
        wire.node(node).run_config["epsilon"] = 0.3
    refused = r"site-0 did not go on: .* 366 rows at epsilon = 0.3 would tell them better"
    with pytest.raises(RoundError, match=refused):
        play(wire)


def test_large_sites_take_part_at_any_epsilon(wire, monkeypatch):
    monkeypatch.setattr(two_party_rows, "FEW_ROWS", 300)
    for node in range(SITES):
        wire.node(node).run_config["epsilon"] = 0.3
    assert play(wire).offers


@pytest.mark.parametrize("own", [[], [0.0], [1.5], [float("nan")], [0.5, 0.5]])
def test_impossible_product_with_itself_is_refused_by_name(wire, own):
    def lie(content):
        offer = TwoPartyOffer.decode(content)
        if offer.site == "site-1":
            content[messages.RECORD]["own"] = own
        return content

    wire.change = on(TWO_PARTY_KEYS, "up", lie)
    with pytest.raises(RoundError, match=r"site-1 did not go on: .*products with itself"):
        play(wire)


def test_site_tells_of_itself_only_where_that_is_asked(wire):
    assert [len(offer.own) for offer in play(wire).offers] == [1] * SITES
    assert [len(offer.own) for offer in play(wire, LABELS).offers] == [0] * SITES


def test_site_whose_owner_does_not_release_it_is_named(wire):
    wire.node(2).node_config["releases"] = "model,loss,label-distances"
    with pytest.raises(RoundError, match="'label-products', which site-2 does not release"):
        play(wire)
