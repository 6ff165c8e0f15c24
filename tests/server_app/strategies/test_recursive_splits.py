import json
import logging

import federations
import numpy as np
import pytest
from flwr.app import Context, RecordDict
from planted import settings_in
from safetensors.numpy import load_file
from server_app.strategies.recursive_splits import RecursiveSplitting

from client_app.simulated_sites import simulated_federation
from common.messages import Introduction, TrainReport
from deploy.simulation.grid import InProcessGrid, simulate
from server_app import app as server
from server_app import methods
from server_app.record.run_folder import RunFolder
from server_app.rounds.attempt import Attempt, Federation
from server_app.rounds.exchange import OK, Answer
from server_app.rounds.roster import Roster

EAST, NORTH, WEST = (np.array(d, dtype=np.float32) for d in ([1, 0], [0, 1], [-1, 0]))


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def clusters_of(folder):
    return json.loads((folder / "clusters.json").read_text())


def strategy_of(tmp_path, sites=6, **words):
    words = {"strategy": "cfl", "cfl_first_round": 0, "cfl_mean_norm": 50} | words
    settings = settings_in(tmp_path, num_clients=sites, **words)
    introductions = tuple(
        Introduction(f"site-{i}", 10, 2, 10, [1, 8, 8], ["model"], input_kind="images")
        for i in range(sites)
    )
    roster = Roster(introductions, tuple(range(1, sites + 1)))
    method = methods.build(settings)
    strategy = RecursiveSplitting(method, settings, roster, RunFolder.create(settings))
    strategy.models = [{"w": np.zeros(2, dtype=np.float32)}]
    return strategy


def play(strategy, number, updates):
    """A round in which some sites (client -> update) answer."""
    federation = Federation(strategy.roster, None, None, 1.0)
    attempt = Attempt(number, 1, federation)
    routes = strategy.routes
    for client, update in updates.items():
        model = int(routes[client])
        trained = {"w": strategy.models[model]["w"] + update}
        report = TrainReport(f"site-{client}", number, 1, model, 10, 0.5, 0.1)
        attempt.trained.append((Answer(client, model, (report, trained), OK), report, trained))
    strategy.before_average(attempt)
    return attempt


def test_the_second_split_maps_members_back_to_sites_and_refines_the_first(tmp_path):
    """West, among them sites 1, 4, leave first; north, sites 2 and 5, only in the next round."""
    strategy = strategy_of(tmp_path)
    first = [EAST, WEST, EAST, EAST, WEST, EAST]
    attempt = play(strategy, 1, dict(enumerate(first)))
    assert strategy.clusters.labels.tolist() == [0, 1, 0, 0, 1, 0]
    assert attempt.drift == pytest.approx(2 / 6)
    second = [EAST, WEST, NORTH, EAST, WEST, NORTH]
    play(strategy, 2, dict(enumerate(second)))
    assert strategy.clusters.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert len(strategy.models) == 3
    splits = clusters_of(strategy.folder.path)["splits"]
    assert [(split["round"], split["kept"], split["left"]) for split in splits] == [
        (1, ["site-0", "site-2", "site-3", "site-5"], ["site-1", "site-4"]),
        (2, ["site-0", "site-3"], ["site-2", "site-5"]),
    ]
    assert splits[0]["cosine"] == -1
    assert splits[0]["mean_norm"] == pytest.approx(1 / 3)
    assert splits[0]["longest_norm"] == 1


def test_both_parts_start_from_the_model_that_they_had(tmp_path):
    strategy = strategy_of(tmp_path)
    strategy.models = [{"w": np.array([0.1, 1 / 3], dtype=np.float32)}]
    before = strategy.models[0]["w"].copy()
    play(strategy, 1, {i: EAST if i % 2 else WEST for i in range(6)})
    assert [np.array_equal(model["w"], before) for model in strategy.models] == [True, True]


def test_a_member_that_did_not_answer_goes_where_its_last_update_points(tmp_path):
    strategy = strategy_of(tmp_path, cfl_mean_norm=0.9)
    play(strategy, 1, dict.fromkeys(range(6), EAST))  # they agree: nothing to split
    assert strategy.clusters.k == 1
    strategy.memory.updates[5] = WEST
    play(strategy, 2, dict(enumerate([EAST, WEST, EAST, WEST])))
    assert strategy.clusters.labels.tolist() == [0, 1, 0, 1, 0, 1]


def test_a_member_that_never_trained_postpones_the_split(tmp_path, caplog):
    strategy = strategy_of(tmp_path)
    updates = {i: EAST if i % 2 else WEST for i in range(5)}
    with caplog.at_level(logging.INFO):
        play(strategy, 1, updates)
    assert strategy.clusters.k == 1
    assert "a split waits for site-5" in caplog.text
    play(strategy, 2, updates | {5: EAST})
    assert strategy.clusters.labels.tolist() == [0, 1, 0, 1, 0, 1]


def test_who_joins_after_a_split_goes_where_others_made_the_same_of_its_model(tmp_path):
    strategy = strategy_of(tmp_path)
    play(strategy, 1, {i: EAST if i % 2 else WEST for i in range(6)})
    assert strategy.clusters.labels.tolist() == [0, 1, 0, 1, 0, 1]
    # The model of the first split was at 0, whatever the clusters' models have become.
    strategy.models = [{"w": 9 * NORTH}, {"w": 9 * NORTH}]
    for trained in (7 * EAST, NORTH + 2 * WEST):
        strategy._place({"w": trained})
    assert strategy.clusters.labels.tolist() == [0, 1, 0, 1, 0, 1, 1, 0]
    assert len(strategy.state()["shared-updates"]) == 8


def test_both_lengths_are_told_for_every_cluster(tmp_path, caplog):
    strategy = strategy_of(tmp_path, cfl_mean_norm=0)
    with caplog.at_level(logging.INFO):
        play(strategy, 1, {0: 3 * EAST, 1: WEST})
    assert "cluster 0: mean update of length 1, longest 3" in caplog.text


def test_clusters_that_never_split_are_fedavg_bit_for_bit(tmp_path, no_report):
    never, fedavg = (
        simulate(settings_in(tmp_path, strategy=strategy, num_clusters=0, **words))
        for strategy, words in (("cfl", {"cfl_mean_norm": 0, "cfl_first_round": 0}), ("fedavg", {}))
    )
    here = load_file(never / "models" / "cluster-0.safetensors")
    there = load_file(fedavg / "models" / "model-0.safetensors")
    assert all(np.array_equal(here[name], there[name]) for name in there)
    assert [line["score"] for line in lines(never, "rounds.jsonl")] == [
        line["score"] for line in lines(fedavg, "rounds.jsonl")
    ]
    assert clusters_of(never)["num_clusters"] == 1


def test_each_split_refines_the_one_before_and_a_retried_round_is_split_once(tmp_path, no_report):
    words = {"strategy": "cfl", "num_clusters": 0, "cfl_first_round": 1, "cfl_mean_norm": 100}
    settings = settings_in(tmp_path, **words).with_absolute_paths()
    simulated_federation(settings)
    load = federations.load_evaluating_at_the_second_attempt
    with InProcessGrid(load, settings.to_dict(), num_nodes=5, workers=1) as grid:
        context = Context(1, 1, {}, RecordDict(), settings.to_dict())
        server.app(grid, context)
    folder = server.run_folder_of(context)
    splits = clusters_of(folder)["splits"]
    parts = [{f"site-{i}" for i in range(5)}]
    for split in splits:
        whole = set(split["kept"]) | set(split["left"])
        assert whole in parts
        parts.remove(whole)
        parts += [set(split["kept"]), set(split["left"])]
    assert len(splits) == clusters_of(folder)["num_clusters"] - 1 >= 1
