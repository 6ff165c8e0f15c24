"""Releases: the names of what a site can give out, which its owner lists."""

__all__ = ["DISCLOSURES", "RELEASES"]

RELEASES = (
    *("label-histogram", "label-distances", "label-products"),
    *("model", "masked-model", "loss", "model-choice"),
)
"""What a site can be asked for beyond its introduction and the metrics of its own evaluation."""

DISCLOSURES = (
    *("probe-rows", "representations", "class-statistics", "representation-products"),
    "class-bases",
)
"""What a site releases only where its own configuration names it: rows, what a model makes of each
of them, the mean and second moment of that in every class, or its products with another site's, or
the leading directions of the rows of every class."""
