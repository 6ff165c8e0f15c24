"""Choice among several models: the one with which a site's training rows have the least loss."""

import numpy as np
from flwr.app import Message

from client_app.received import received_models
from client_app.site import Site
from client_app.training import engine, personal
from common.messages import ChoiceOrder, Parameters
from common.model_choice import choices

__all__ = ["chosen"]


def chosen(message: Message, site: Site) -> tuple[ChoiceOrder, int, Parameters]:
    """Return what a message asks, and the number and the arrays of the model that fits best.

    Raises:
        MessageError: arrays that are no models of this run.
        ClusteringError: no model has a finite loss here.
    """
    order = ChoiceOrder.decode(message.content)
    models = received_models(message.content, site, order.models)
    used = [personal.completed(model, site, order.round - 1) for model in models]
    losses = [engine.evaluate_on_training_rows(model, site).loss for model in used]
    best = int(choices(np.array([losses]))[0])
    return order, best, models[best]
