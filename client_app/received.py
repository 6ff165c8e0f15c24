"""Model that a site received: decoded, and held against the network that this run makes here."""

import functools

from flwr.app import RecordDict

from client_app.site import Site
from common import messages, models
from common.messages import Parameters, Template
from common.objectives import objective_of

__all__ = ["received_model"]


def received_model(content: RecordDict, site: Site) -> Parameters:
    """Return the model in a message, to be trained or evaluated at a site.

    Raises:
        MessageError: it lacks an array or has another, of other shape or type, or one that holds
            NaN or infinity, running statistics included.
    """
    parameters = messages.decode_arrays(messages.arrays_of(content))
    dataset = site.dataset
    if objective_of(site.settings).shares_model:
        template = _template(site.settings.model, dataset.input_shape, dataset.num_classes)
    else:
        template = Template.of({})
    messages.check_arrays(parameters, template)
    return parameters


@functools.lru_cache(maxsize=2)
def _template(name: str, input_shape: tuple[int, ...], num_classes: int) -> Template:
    return Template.of(models.parameters_of(models.blank(name, input_shape, num_classes)))
