"""Rules that look at losses and updates, by hand and by their promises."""

import dataclasses

import numpy as np
import pytest

from server_app import gaussian_process
from server_app.clustering.clusters import Clusters
from server_app.record.values import tree_of, value_of
from server_app.selection.informed import (
    Delta,
    FedCor,
    FedLecc,
    LossChanges,
    PowerOfChoice,
    sampling_odds,
)
from server_app.selection.rules import View


def view(n=6, number=1, **seen):
    return View(number, np.ones(n, bool), np.arange(1, n + 1), Clusters.single(n), **seen)


def test_power_of_choice_asks_by_size_and_takes_the_largest_losses():
    rule = PowerOfChoice(2, candidates=4)
    rng = np.random.default_rng(0)
    times = np.zeros(6)
    for _ in range(2000):
        asked = rule.ask(view(), rng)
        assert len(set(asked.tolist())) == 4
        times[asked] += 1
    assert (np.diff(times) > 0).all()  # sizes are 1..6
    losses = np.array([np.nan, 3.0, 1.0, np.nan, 2.0, 0.5])
    assert rule.choose(view(losses=losses), rng).clients.tolist() == [1, 4]


def test_power_of_choice_goes_on_with_who_answered():
    losses = np.array([np.nan, np.nan, 1.0, np.nan, np.nan, np.nan])
    cohort = PowerOfChoice(2, 4).choose(view(losses=losses), np.random.default_rng(0))
    assert cohort.clients.tolist() == [2]


def lecc(losses, labels, m):
    seen = dataclasses.replace(
        view(len(losses), losses=np.array(losses)), clusters=Clusters(np.array(labels))
    )
    return FedLecc(m).choose(seen, np.random.default_rng(0)).clients.tolist()


def test_fed_lecc_takes_the_largest_losses_of_the_clusters_with_the_largest():
    """Four clusters of mean losses 2, 4, 1 and 3: clusters 1 and 3 give two sites each."""
    losses = [1, 3, 4, 5, 3, 1, 1, 3, 4, 2]
    labels = [0, 0, 1, 1, 1, 2, 2, 3, 3, 3]
    assert lecc(losses, labels, 4) == [2, 3, 7, 8]
    assert lecc(losses, labels, 3) == [2, 3, 8]
    # 3 + 3 of the first two clusters, then cluster 0 by its losses.
    assert lecc(losses, labels, 7) == [1, 2, 3, 4, 7, 8, 9]
    assert lecc(losses, labels, 10) == list(range(10))


def test_fed_lecc_fills_up_breaks_ties_by_place_and_leaves_out_who_told_nothing():
    nan = float("nan")
    assert lecc([5, 1, 1, 1, 1, 1], [0, 1, 1, 2, 2, 2], 4) == [0, 1, 2, 3]
    assert lecc([2, 2, 2, 2], [0, 0, 1, 1], 1) == [0]
    assert lecc([nan, 1, 2, nan], [0, 0, 1, 1], 4) == [1, 2]
    assert FedLecc(2).ask(view(), np.random.default_rng(0)).tolist() == list(range(6))


def test_delta_odds_by_hand():
    """Sizes 1 and 3, updates 0.5·e and -0.5·e apart: the mean is (0.5 - 1.5)/4 = -0.25."""
    updates = np.array([[0.5], [-0.5], [0.0]])
    odds = sampling_odds(np.array([1, 3, 4]), updates)
    shares = np.array([1, 3, 4]) / 8
    differs = np.array([0.75, 0.25, 0.5])  # the third is not known: the mean of the others
    expected = 0.5 * shares * differs + 0.5 * np.sqrt(shares)
    assert odds == pytest.approx(expected / expected.sum())


def test_delta_weighs_rare_clients_more_and_rehearses_only_in_full():
    updates = np.zeros((6, 2), dtype=np.float32)
    seen = view(updates=updates)
    rng = np.random.default_rng(1)
    cohort = Delta(3).choose(seen, rng)
    odds = sampling_odds(seen.num_examples, updates)
    expected = seen.num_examples[cohort.clients] / odds[cohort.clients]
    assert cohort.weights == pytest.approx(expected)
    assert len(Delta(3).rehearse(seen, rng)) == 0
    assert Delta(3, full=True).rehearse(seen, rng).tolist() == list(range(6))


def play(rule, rounds, n=6, seed=0):
    """Cohorts of a rule that is answered as the strategy answers; who was asked and rehearsed."""
    truth = np.random.default_rng(seed)
    told, learnt = [], rule.init()
    for number in range(1, rounds + 1):
        rng = np.random.default_rng(number)
        seen = view(n, number)
        asked, rehearsing = rule.ask(seen, rng), rule.rehearse(seen, rng)
        if len(asked):
            seen = dataclasses.replace(seen, losses=truth.normal(size=n))
        if len(rehearsing):
            seen = dataclasses.replace(seen, losses_after=truth.normal(size=n))
        cohort, learnt = rule.update(learnt, seen, rng)
        told.append((len(asked), len(rehearsing), cohort.clients.tolist()))
    return told, learnt


def test_fedcor_asks_everybody_in_warm_up_and_at_each_training():
    told, _ = play(FedCor(2, warmup=3, interval=2), 8)
    assert [asked for asked, _, _ in told] == [6, 6, 6, 6, 0, 6, 0, 6]
    assert [rehearsing for _, rehearsing, _ in told] == [0, 0, 0, 0, 0, 2, 0, 2]
    assert all(len(clients) == 2 for *_, clients in told)


def test_fedcor_selects_by_the_process_trained_on_what_it_saw():
    told, learnt = play(FedCor(2, warmup=3, interval=5), 4)
    assert learnt.rounds.tolist() == [1, 2, 3]
    truth = np.random.default_rng(0)
    losses = np.array([truth.normal(size=6) for _ in range(4)])
    assert learnt.changes == pytest.approx(np.diff(losses, axis=0))
    residuals, weights = gaussian_process.centred(np.diff(losses, axis=0))
    # the first draw of round 1 makes the embedding
    start = gaussian_process.initial_embedding(6, np.random.default_rng(1))
    fitted = gaussian_process.fit(start, residuals, weights, 1000)
    assert learnt.embedding == pytest.approx(fitted)
    shares = np.arange(1, 7) / 21
    chosen = gaussian_process.select(gaussian_process.covariance_of(fitted), shares, 2, np.ones(6))
    assert told[3][2] == sorted(chosen.tolist())
    assert sorted(learnt.discounts.tolist()) == [0.9, 0.9, 1, 1, 1, 1]


def test_fedcor_goes_on_from_its_state():
    rule = FedCor(2, 2, 9)
    through, _ = play(rule, 5)
    _, learnt = play(rule, 4)
    kept = value_of(LossChanges, tree_of(learnt))
    for key, value in vars(learnt).items():
        assert np.array_equal(getattr(kept, key), value, equal_nan=True)
    cohort, _ = rule.update(kept, view(6, 5), np.random.default_rng(5))
    assert cohort.clients.tolist() == through[4][2]


def test_fedcor_observes_a_retried_round_once_and_makes_room_for_newcomers():
    rule = FedCor(2, warmup=2, interval=3)
    rng = np.random.default_rng(0)
    _, learnt = rule.update(rule.init(), view(4, 1, losses=np.ones(4)), rng)
    for _ in range(2):
        _, learnt = rule.update(learnt, view(4, 2, losses=np.zeros(4)), rng)
        assert learnt.changes.tolist() == [[-1.0] * 4]
    cohort, learnt = rule.update(learnt, view(5, 3, losses=np.arange(5.0)), rng)
    assert len(cohort.clients) == 2
    assert learnt.changes.shape == (2, 5)
    assert np.isnan(learnt.changes[:, 4]).all()
