"""Clients side by side: as each of them alone, whatever their lengths."""

import json
from dataclasses import replace

import drawn
import numpy as np
import pytest
import ties
import torch
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from kinds_of_rows import kind_of
from torch import nn

from client_app.training import engine, stacked
from client_app.training.engine import Lesson
from common.config import Settings
from common.seeds import generator
from deploy.simulation import batched
from deploy.simulation.grid import simulate

SHAPES = {"mlp": (12,), "lenet": (1, 8, 8), "pereira-cnn": (3, 32, 32)}
# Of first models whose trainings below come near no tie. That of pereira-cnn takes 300 times as
# many decisions for a row as the mlp, so that it must be short.
SEEDS = {"mlp": 2, "lenet": 2, "pereira-cnn": 1}
LENGTHS = {"mlp": [60, 16, 1, 33, 17], "lenet": [60, 16, 1, 33, 17], "pereira-cnn": [7, 4, 1, 5, 2]}


def lessons_of(lengths, shape):
    """Clients of one data set with so many rows each; rows may be of several clients."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(80, *shape)).astype(np.float32)
    labels = rng.integers(0, 5, 80)
    rows = [rng.permutation(80)[:length] for length in lengths]
    return [
        Lesson(inputs, labels, mine, generator(index, "order"), index, 5, kind=kind_of(inputs))
        for index, mine in enumerate(rows)
    ]


def settings_of(name, changes):
    return {"model": name, "local-epochs": 2, "batch-size": 16, "device": "cpu", **changes}


def gap(name, lengths, **changes):
    """How near these trainings come to a tie, on both sides of which they would part."""
    settings = Settings(**settings_of(name, changes))
    first = drawn.first_model(name, SHAPES[name], 5, SEEDS[name])
    return min(ties.nearest(first, one, settings) for one in lessons_of(lengths, SHAPES[name]))


def both(name, lengths, **changes):
    shape, values = SHAPES[name], settings_of(name, changes)
    first = drawn.first_model(name, shape, 5, SEEDS[name])
    return [
        batched.train_many(first, lessons_of(lengths, shape), Settings(**values, engine=kind))
        for kind in ("loop", "stacked")
    ]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("changes", [{}, {"momentum": 0.0, "weight-decay": 0.05}])
def test_each_client_gets_the_model_of_the_loop(name, changes):
    changes = changes | {"batch-size": 4 if name == "pereira-cnn" else 16}
    assert gap(name, LENGTHS[name], **changes) > ties.NEAR
    loop, ours = both(name, LENGTHS[name], **changes)
    np.testing.assert_allclose(ours.values, loop.values, atol=1e-5)
    np.testing.assert_allclose(ours.losses, loop.losses, atol=1e-5)
    assert (ours.seconds > 0).all()
    assert (ours.cpu_seconds > 0).all()


@hypothesis_settings(max_examples=8, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=9),
    batch=st.integers(1, 20),
    epochs=st.integers(1, 3),
)
def test_for_any_lengths_batches_and_epochs(lengths, batch, epochs):
    changes = {"batch-size": batch, "local-epochs": epochs}
    assume(gap("mlp", lengths, **changes) > ties.NEAR)
    loop, ours = both("mlp", lengths, **changes)
    np.testing.assert_allclose(ours.values, loop.values, atol=1e-5)
    np.testing.assert_allclose(ours.losses, loop.losses, atol=1e-5)


def test_more_clients_than_a_stack_holds(monkeypatch):
    monkeypatch.setattr(stacked, "MOST_CLIENTS", 4)
    lengths = [9, 40, 3, 22, 14, 40, 1]
    assert gap("mlp", lengths) > ties.NEAR
    loop, ours = both("mlp", lengths)
    np.testing.assert_allclose(ours.values, loop.values, atol=1e-5)


def test_the_rows_of_another_data_set_are_not_mistaken():
    settings = Settings(model="mlp", engine="stacked", device="cpu")
    first = drawn.first_model("mlp", (12,), 5)
    results = []
    for sign in (1, -1, 1):
        lessons = [replace(one, inputs=sign * one.inputs) for one in lessons_of([30], (12,))]
        results.append(batched.train_many(first, lessons, settings).values)
    assert np.array_equal(results[0], results[2])
    assert not np.allclose(results[0], results[1])


@drawn.seeded()
def test_networks_with_dropout_or_batch_norm_are_left_to_the_loop():
    assert not stacked.can_stack(drawn.network("pereira-mlp", (1, 28, 28), 10))
    assert not stacked.can_stack(drawn.network("resnet18", (3, 32, 32), 10))
    assert not stacked.can_stack(nn.Sequential(nn.Linear(3, 2, bias=False)))
    assert not stacked.can_stack(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)))
    assert not stacked.can_stack(nn.Sequential(nn.Conv2d(4, 4, 3, padding_mode="circular")))
    lessons = lessons_of([20, 30], (12,))
    first = drawn.first_model("pereira-mlp", (12,), 5)
    settings = Settings(model="pereira-mlp", engine="stacked", device="cpu")
    assert engine.fit_together(first, lessons, settings) is None
    assert np.isfinite(batched.train_many(first, lessons, settings).values).all()


def test_what_torch_refuses_is_said_and_the_sites_are_trained_one_by_one(
    monkeypatch, caplog, tmp_path, no_report
):
    def refuse(*_):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(stacked, "train", refuse)
    values = {"num-clients": 5, "num-server-rounds": 1, "model": "mlp", "strategy": "fedavg"}
    values |= {"output-dir": str(tmp_path), "workers": 1, "device": "cpu"}
    with caplog.at_level("WARNING", logger="coterie"):
        runs = [simulate(Settings(**values, engine=kind)) for kind in ("batched", "stacked")]
    assert "one by one, for: CUDA out of memory" in caplog.text
    one, other = (json.loads((run / "rounds.jsonl").read_text()) for run in runs)
    assert (one["loss"], one["train_loss"]) == (other["loss"], other["train_loss"])


def test_a_step_reads_nothing_that_changes_its_place():
    """What a CUDA graph needs: the same call, with new numbers in the same tensors."""
    rows = lessons_of([30, 10, 20], (12,))
    settings = Settings(**{"model": "mlp", "batch-size": 8, "local-epochs": 1})
    network = drawn.network("mlp", (12,), 5)
    data = stacked._on_device(stacked._Data(rows[0].inputs, rows[0].labels), torch.device("cpu"))
    stack = stacked.Stack(network, 3, data, stacked.StackedSgd.of(settings))
    held = {name: value for name, value in vars(stack).items() if isinstance(value, torch.Tensor)}
    held |= stack._values
    places = {name: value.data_ptr() for name, value in held.items()}
    for seed in (0, 1):
        first = drawn.first_model("mlp", (12,), 5)
        orders = [generator(seed, "order", index) for index in range(3)]
        plan = stacked.stacked_plan([one.rows for one in rows], orders, settings, 3)
        stack.train(first, plan, learning_rate=0.1)
    after = {name: getattr(stack, name, stack._values.get(name)) for name in held}
    assert {name: value.data_ptr() for name, value in after.items()} == places


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_learns_as_with_the_loop(workers, tmp_path, no_report):
    values = {"num-clients": 5, "num-server-rounds": 3, "model": "mlp", "strategy": "fedavg"}
    values |= {"output-dir": str(tmp_path), "workers": workers, "device": "cpu"}
    loop, ours = (
        [
            json.loads(line)
            for line in (simulate(Settings(**values, engine=kind)) / "rounds.jsonl")
            .read_text()
            .splitlines()
        ]
        for kind in ("loop", "stacked")
    )
    for one, other in zip(loop, ours, strict=True):
        assert other["score"] == pytest.approx(one["score"], abs=0.01)
        assert other["loss"] == pytest.approx(one["loss"], abs=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu_graphs_replay_what_the_cpu_computes():
    loop, ours = both("lenet", [60, 16, 1, 33, 17])
    _, graphs = both("lenet", [60, 16, 1, 33, 17], device="cuda")
    np.testing.assert_allclose(graphs.values, loop.values, atol=1e-3)  # TF32 in convolutions
    np.testing.assert_allclose(ours.values, loop.values, atol=1e-5)
