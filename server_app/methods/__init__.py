"""Methods: short compositions of the same pieces, one file for each source."""

from server_app.methods.catalogue import METHODS, build, compose, listing
from server_app.methods.method import Card, Composition, Method
from server_app.methods.recommended import RECOMMENDED

__all__ = [
    "METHODS",
    "RECOMMENDED",
    "Card",
    "Composition",
    "Method",
    "build",
    "compose",
    "listing",
]
