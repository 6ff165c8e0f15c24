"""ClientApp: what a site answers to each kind of message."""

from collections.abc import Callable

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app import energy
from client_app.answers import (
    choice,
    pilot_sums,
    secagg,
    task_figures,
    two_party,
    with_noise,
)
from client_app.answers import (
    label_histogram as descriptors,
)
from client_app.answers import (
    representations as probing,
)
from client_app.answers.class_statistics import class_moments
from client_app.answers.representations import SeenRows
from client_app.received import received_model
from client_app.site import Site, open_site, require
from client_app.training import personal
from client_app.training.loop import Evaluation, Stopwatch
from common import messages, plugins
from common.errors import CoterieError, DataError
from common.messages import (
    BasesReport,
    ChoiceReport,
    EmbeddedReport,
    EvaluateReport,
    FineTuneReport,
    Introduction,
    LossReport,
    Order,
    Parameters,
    PersonalReport,
    ProbeReport,
    ProbeRequest,
    RepresentationReport,
    TellingReport,
    TrainReport,
)
from common.objectives import Fitted, objective_of, split

Handler = Callable[[Message, Site], Message]
NodeHandler = Callable[[Message, Site, Context], Message]

app = ClientApp()


def _of_site(handler: Handler) -> Callable[[Message, Context], Message]:
    """Open the site for a handler that needs nothing else of its node."""
    return _of_node(lambda message, site, context: handler(message, site))


def _of_node(handler: NodeHandler) -> Callable[[Message, Context], Message]:
    """Open the site, and let any error name it: Flower's error reply carries only the text."""

    def answer(message: Message, context: Context) -> Message:
        name = f"node {context.node_id}"
        try:
            site = open_site(context)
            name = f"site {site.name}"
            messages.check_form(message.content)
            return energy.metered(lambda m, s: handler(m, s, context), message, site)
        except CoterieError as error:
            raise type(error)(f"{name}: {error}") from error
        except Exception as error:
            text = plugins.blamed(error, context.run_config) or f"{type(error).__name__}: {error}"
            raise RuntimeError(f"{name}: {text}") from error

    return answer


def _task(message: Message, site: Site) -> tuple[Order, Parameters]:
    """Return what a message asks, and the model that it is about, as it was received."""
    order = Order.decode(message.content)
    return order, received_model(message.content, site)


def _whole_task(message: Message, site: Site) -> tuple[Order, Parameters]:
    """Return the same with the site's own arrays, as it last trained them, for those not sent."""
    order, parameters = _task(message, site)
    return order, personal.completed(parameters, site, order.round)


@app.query("introduce")
@_of_site
def introduce(message: Message, site: Site) -> Message:
    """Say who this site is and what it releases."""
    introduction = Introduction(
        site=site.name,
        num_examples=len(site.rows.train),
        num_test_examples=len(site.rows.test),
        num_classes=site.dataset.num_classes,
        input_kind=site.dataset.kind,
        input_shape=list(site.dataset.inputs.shape),
        releases=list(site.releases),
        link_rate=site.link_rate,
        schema=site.dataset.schema,
    )
    return messages.reply(message, introduction)


@app.query("label_histogram")
@_of_site
def label_histogram(message: Message, site: Site) -> Message:
    """Count the training rows of each class, with noise if the run asks for it."""
    require(site, "label-histogram")
    counts = descriptors.histogram(
        site.dataset.train_strata[site.rows.train], site.dataset.num_classes
    )
    answer, note = with_noise.label_answer(site, counts)
    return messages.reply(message, answer, note=note)


@app.query("probe_rows")
@_of_site
def probe_rows(message: Message, site: Site) -> Message:
    """Send training rows, inputs only, if the site's own configuration releases that."""
    require(site, "probe-rows")
    request = ProbeRequest.decode(message.content)
    rows = {messages.PROBE: probing.drawn_inputs(site, request.rows)}
    return messages.reply(message, ProbeReport(site.name), rows)


@app.query("representations")
@_of_site
def representations(message: Message, site: Site) -> Message:
    """Send what the model makes of this site's rows, if its own configuration releases that."""
    require(site, "representations")
    watch = Stopwatch()
    order, parameters = _whole_task(message, site)
    seen = probing.represented(parameters, site)
    report = _seen_report(site, order, seen, watch.seconds)
    return messages.reply(message, report, {messages.ROWS_SEEN: seen.rows})


def _seen_report(site: Site, order: Order, seen: SeenRows, seconds: float) -> RepresentationReport:
    return RepresentationReport(
        site=site.name,
        round=order.round,
        attempt=order.attempt,
        model=order.model,
        classes=list(seen.counts),
        counts=list(seen.counts.values()),
        seconds=seconds,
    )


@app.query("embedded_rows")
@_of_site
def embedded_rows(message: Message, site: Site) -> Message:
    """Send what the model makes of some training rows, if the site's configuration releases it."""
    require(site, "representations")
    watch = Stopwatch()
    order, parameters = _whole_task(message, site)
    rows = probing.embedded(parameters, site)
    report = EmbeddedReport(site.name, order.round, order.attempt, order.model, watch.seconds)
    return messages.reply(message, report, {messages.EMBEDDED: rows})


@app.query("class_bases")
@_of_site
def class_bases(message: Message, site: Site) -> Message:
    """Send leading directions of the rows of every class, if the site's configuration says so."""
    require(site, "class-bases")
    bases = probing.class_bases(site)
    if not bases:
        raise DataError("all training rows are zeros, which have no direction")
    report = BasesReport(site.name, list(bases), [basis.shape[1] for basis in bases.values()])
    return messages.reply(message, report, {messages.BASES: np.hstack(list(bases.values()))})


@app.query("class_statistics")
@_of_site
def class_statistics(message: Message, site: Site) -> Message:
    """Send mean and second moment of every class, if the site's own configuration releases that."""
    require(site, "class-statistics")
    watch = Stopwatch()
    order, parameters = _whole_task(message, site)
    seen = probing.represented(parameters, site)
    moments, note = class_moments(parameters, seen, site)
    report = _seen_report(site, order, seen, watch.seconds)
    return messages.reply(message, report, {messages.MOMENTS: moments}, note)


@app.train()
@_of_site
def train(message: Message, site: Site) -> Message:
    """Train the model received on this site's rows and send it back, if anything is shared."""
    return _trained(message, site)


@app.train("telling_loss")
@_of_site
def train_telling(message: Message, site: Site) -> Message:
    """Train as :func:`train`, and say how the model received did on the same rows before that."""
    require(site, "loss")
    order = Order.decode(message.content)
    received, _ = split(received_model(message.content, site, trains=True))
    before = personal.evaluate_on_training_rows(received, site, order)
    return _trained(message, site, before)


@app.train("of_choice")
@_of_site
def train_choice(message: Message, site: Site) -> Message:
    """Train the one of several models that fits this site's rows best, and say which that is."""
    require(site, "model-choice")
    order, model, parameters = choice.chosen(message, site)
    # From here on it is an order to train that one.
    one = Order(order.round, order.attempt, model)
    message.content = messages.content(one, messages.encode_arrays(parameters))
    return _trained(message, site)


@app.query("choose")
@_of_site
def choose(message: Message, site: Site) -> Message:
    """Say which of several models fits this site's rows best, if the site releases that."""
    require(site, "model-choice")
    watch = Stopwatch()
    order, model, _ = choice.chosen(message, site)
    report = ChoiceReport(
        site=site.name,
        round=order.round,
        attempt=order.attempt,
        model=model,
        num_examples=len(site.rows.train),
        seconds=watch.seconds,
    )
    return messages.reply(message, report)


def _trained(message: Message, site: Site, before: Evaluation | None = None) -> Message:
    if objective_of(site.settings).shares_model:
        require(site, "model")
    order = Order.decode(message.content)
    parameters = received_model(message.content, site, trains=True)
    learned = personal.train(parameters, site, order)
    fitted = Fitted(learned.shared, learned.loss, learned.seconds)
    return train_reply(message, site, order, fitted, before)


def train_reply(
    message: Message, site: Site, order: Order, fitted: Fitted, before: Evaluation | None = None
) -> Message:
    """Return the answer to an order to train, with noise if the run asks for it.

    Args:
        message: the order.
        site: that trained.
        order: what the message says.
        fitted: what it trained.
        before: how the model received did on its training rows, where that was asked, too.
    """
    fitted, note = with_noise.update_answer(message, site, fitted)
    report = TrainReport(
        site=site.name,
        round=order.round,
        attempt=order.attempt,
        model=order.model,
        num_examples=len(site.rows.train),
        loss=fitted.loss,
        seconds=fitted.seconds,
    )
    if before is not None:
        report = TellingReport(
            **vars(report), loss_before=before.loss, rms_loss_before=before.rms_loss
        )
    return messages.reply(message, report, fitted.parameters, note)


def _require_score(site: Site) -> None:
    """Refuse to tell the sums of a score that tell of the labels, where the site keeps those."""
    if site.dataset.task.score.tells_classes:
        require(site, "label-histogram")


@app.evaluate()
@_of_site
def evaluate(message: Message, site: Site) -> Message:
    """Evaluate the model that this site uses on its held-out rows: its own, or the one received."""
    watch = Stopwatch()
    _require_score(site)
    order, parameters = _task(message, site)
    used, own, shared = personal.evaluate(parameters, site, order)
    return evaluate_reply(message, site, order, used, own, watch.seconds, shared)


def evaluate_reply(
    message: Message,
    site: Site,
    order: Order,
    used: Parameters,
    result: Evaluation,
    seconds: float,
    shared: Evaluation | None = None,
) -> Message:
    """Return the answer to an order to evaluate.

    Args:
        message: the order.
        site: that evaluated.
        order: what the message says.
        used: the model that the site uses.
        result: what that gave.
        seconds: that it took.
        shared: what the common model gave, where the site has one of its own.
    """
    report = EvaluateReport(
        site=site.name,
        round=order.round,
        attempt=order.attempt,
        model=order.model,
        num_examples=len(site.rows.test),
        loss=result.loss,
        score=result.score,
        score_sums=list(result.score_sums),
        seconds=seconds,
    )
    if shared is not None:
        report = PersonalReport(
            **vars(report),
            shared_loss=shared.loss,
            shared_score=shared.score,
            shared_score_sums=list(shared.score_sums),
        )
    answer = messages.reply(message, report)
    figures = task_figures.figures(used, site)
    return answer if figures is None else messages.with_figures(answer, figures)


@app.train("fine_tune")
@_of_site
def fine_tune(message: Message, site: Site) -> Message:
    """Train the model that this site uses on, and say how it does on held-out rows, both times."""
    watch = Stopwatch()
    _require_score(site)
    order, parameters = _task(message, site)
    before, after = personal.fine_tuned(parameters, site, order)
    report = FineTuneReport(
        site=site.name,
        round=order.round,
        attempt=order.attempt,
        model=order.model,
        num_examples=len(site.rows.test),
        loss=before.loss,
        score=before.score,
        score_sums=list(before.score_sums),
        tuned_loss=after.loss,
        tuned_score=after.score,
        tuned_score_sums=list(after.score_sums),
        seconds=watch.seconds,
    )
    return messages.reply(message, report)


@app.query("loss")
@_of_site
def loss(message: Message, site: Site) -> Message:
    """Measure the model received on this site's training rows, if the site releases that."""
    require(site, "loss")
    watch = Stopwatch()
    order, received = _task(message, site)
    found = personal.evaluate_on_training_rows(received, site, order)
    report = LossReport(
        site=site.name,
        round=order.round,
        attempt=order.attempt,
        model=order.model,
        num_examples=len(site.rows.train),
        loss=found.loss,
        rms_loss=found.rms_loss,
        seconds=watch.seconds,
    )
    return messages.reply(message, report)


app.train("pilot_round")(_of_site(pilot_sums.train))
app.query("pilot_look")(_of_site(pilot_sums.look))
app.query("score_counts")(_of_site(task_figures.score_counts))
app.query("final_evaluation")(_of_site(task_figures.final_evaluation))
app.query("product_keys")(_of_node(two_party.keys))
app.query("product_open")(_of_node(two_party.open_rows))
app.query("product_share")(_of_node(two_party.share))
app.query("product_cost")(_of_node(two_party.cost))
app.train("for_sum")(_of_node(secagg.train))
app.train("pilot_for_sum")(_of_node(pilot_sums.for_sum))
app.query("pilot_tell")(_of_site(pilot_sums.tell))
app.query("share")(_of_node(secagg.share))
app.query("mask")(_of_node(secagg.mask))
app.query("agree")(_of_node(secagg.agree))
app.query("unmask")(_of_node(secagg.unmask))
