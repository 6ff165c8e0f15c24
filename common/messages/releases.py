"""Releases: the names of what a site can give out, which its owner lists, and what each is."""

from collections.abc import Mapping

__all__ = ["DISCLOSURES", "GIVEN_OUT", "RELEASES"]

_USUAL: Mapping[str, str] = {
    "label-histogram": "its number of rows of each class, or with label-privacy that with noise",
    "label-distances": "its class shares, sealed and masked, for their distances to other sites'",
    "label-products": "its class counts, sealed and masked, for their products with other sites'",
    "model": "the model that it trained, and its training loss",
    "masked-model": "the same behind a mask, of which the server learns only a sum over sites",
    "loss": "the loss of a model on its training rows",
    "model-choice": "which of several models fits its rows best, and their losses",
}
_NAMED: Mapping[str, str] = {
    "probe-rows": "rows of its own, as they are, for clusters of models",
    "representations": "what a model makes of each of its rows, and the row's class",
    "class-statistics": "mean and second moment of that in every class, or these with noise",
    "representation-products": "that, sealed and masked, for its products with other sites'",
    "class-bases": "the leading directions of its rows of every class",
    "pilot-change": "how much it would gain, by a pilot whose server reads sums only",
}
GIVEN_OUT: Mapping[str, str] = {**_USUAL, **_NAMED}
"""What is given out under each name, in words."""
RELEASES = tuple(_USUAL)
"""What a site can be asked for beyond its introduction and the metrics of its own evaluation."""

DISCLOSURES = tuple(_NAMED)
"""What a site releases only where its own configuration names it."""
