"""The ClientApp: what a site answers to each kind of message."""

from collections.abc import Callable

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import nn

from client_app import descriptors, training
from client_app.site import Site, open_site
from client_app.training import Rows, Stopwatch
from common import messages, models, seeds
from common.errors import CoterieError, MessageError
from common.messages import (
    EvaluateReport,
    Introduction,
    LabelHistogram,
    LossReport,
    Order,
    TrainReport,
)

Handler = Callable[[Message, Site], Message]

app = ClientApp()


def _of_site(handler: Handler) -> Callable[[Message, Context], Message]:
    """Open the site, and let any error name it: Flower's error reply carries only the text."""

    def answer(message: Message, context: Context) -> Message:
        name = f"node {context.node_id}"
        try:
            site = open_site(context)
            name = f"site {site.name}"
            return handler(message, site)
        except CoterieError as error:
            raise type(error)(f"{name}: {error}") from error
        except Exception as error:
            raise RuntimeError(f"{name}: {type(error).__name__}: {error}") from error

    return answer


@app.query("introduce")
@_of_site
def introduce(message: Message, site: Site) -> Message:
    """Say who this site is and what it releases."""
    introduction = Introduction(
        site=site.name,
        num_examples=len(site.rows.train),
        num_test_examples=len(site.rows.test),
        num_classes=site.dataset.num_classes,
        input_shape=list(site.dataset.input_shape),
        releases=list(site.releases),
    )
    return messages.reply(message, introduction)


@app.query("label_histogram")
@_of_site
def label_histogram(message: Message, site: Site) -> Message:
    """Count the training rows of each class, if the site releases that."""
    _require(site, "label-histogram")
    counts = descriptors.label_histogram(
        site.dataset.train_y[site.rows.train], site.dataset.num_classes
    )
    return messages.reply(message, LabelHistogram(site.name, counts))


@app.train()
@_of_site
def train(message: Message, site: Site) -> Message:
    """Train the model received on this site's rows and send it back."""
    _require(site, "model")
    watch = Stopwatch()
    order = Order.decode(message.content)
    settings = site.settings
    device = training.choose_device(settings.device)
    words = ("train", site.name, order.round, order.attempt)
    with training.repeatable(device, seeds.derive_seed(settings.seed, "torch", *words)):
        network = _network(message, site, device)
        rows = Rows.on(device, *site.train)
        loss = training.train(network, rows, settings, seeds.generator(settings.seed, *words))
    report = TrainReport(
        site=site.name,
        round=order.round,
        attempt=order.attempt,
        model=order.model,
        num_examples=len(rows),
        loss=loss,
        seconds=watch.seconds,
    )
    return messages.reply(message, report, models.parameters_of(network))


@app.evaluate()
@_of_site
def evaluate(message: Message, site: Site) -> Message:
    """Evaluate the model received on this site's held-out rows."""
    watch = Stopwatch()
    order = Order.decode(message.content)
    device = training.choose_device(site.settings.device)
    with training.repeatable(device, site.settings.seed):
        network = _network(message, site, device)
        rows = Rows.on(device, *site.test)
        result = training.evaluate(network, rows)
    report = EvaluateReport(
        site=site.name,
        round=order.round,
        attempt=order.attempt,
        model=order.model,
        num_examples=len(rows),
        loss=result.loss,
        accuracy=result.accuracy,
        seconds=watch.seconds,
    )
    return messages.reply(message, report)


@app.query("loss")
@_of_site
def loss(message: Message, site: Site) -> Message:
    """Measure the model received on this site's training rows, if the site releases that."""
    _require(site, "loss")
    watch = Stopwatch()
    order = Order.decode(message.content)
    device = training.choose_device(site.settings.device)
    with training.repeatable(device, site.settings.seed):
        network = _network(message, site, device)
        rows = Rows.on(device, *site.train)
        result = training.evaluate(network, rows)
    report = LossReport(
        site=site.name,
        round=order.round,
        attempt=order.attempt,
        model=order.model,
        num_examples=len(rows),
        loss=result.loss,
        seconds=watch.seconds,
    )
    return messages.reply(message, report)


def _network(message: Message, site: Site, device: torch.device) -> nn.Module:
    parameters = messages.decode_arrays(messages.arrays_of(message.content))
    network = models.build(site.settings.model, site.dataset.input_shape, site.dataset.num_classes)
    models.load_parameters(network, parameters)
    return network.to(device)


def _require(site: Site, release: str) -> None:
    if release not in site.releases:
        raise MessageError(f"this site does not release {release!r}")
