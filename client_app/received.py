"""Model that a site received: decoded, and held against the network that this run makes here."""

import functools

from flwr.app import RecordDict

from client_app.site import Site
from common import messages, models
from common.messages import Parameters, Template
from common.sharing import parts_of_network

__all__ = ["received_model", "received_models"]


def received_model(content: RecordDict, site: Site) -> Parameters:
    """Return the model in a message, to be trained or evaluated at a site: its shared arrays.

    Raises:
        MessageError: it lacks an array or has another, of other shape or type, or one that holds
            NaN or infinity, running statistics included.
    """
    parameters = messages.decode_arrays(messages.arrays_of(content))
    _check(parameters, site)
    return parameters


def received_models(content: RecordDict, site: Site, number: int) -> list[Parameters]:
    """Return several models in a message, as :func:`received_model`."""
    arrays = messages.decode_arrays(messages.arrays_of(content))
    received: list[Parameters] = [*messages.apart(arrays, number)]
    for parameters in received:
        _check(parameters, site)
    return received


def _check(parameters: Parameters, site: Site) -> None:
    settings, dataset = site.settings, site.dataset
    network = settings.model, dataset.input_shape, dataset.num_classes
    messages.check_arrays(parameters, _template(settings.objective, *network))


@functools.lru_cache(maxsize=2)
def _template(
    objective: str, model: str, input_shape: tuple[int, ...], num_classes: int
) -> Template:
    whole = models.parameters_of(models.blank(model, input_shape, num_classes))
    shared = parts_of_network(objective, model, input_shape, num_classes).shared
    return Template.of({name: value for name, value in whole.items() if name in shared})
