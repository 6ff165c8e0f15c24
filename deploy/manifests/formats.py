"""Formats of manifests, by name: which files a recipient's folder gets beside the provisioned."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from deploy.manifests import compose, kubernetes, systemd


class Format(StrEnum):
    """What is to keep servers and sites running."""

    COMPOSE = "compose"
    SYSTEMD = "systemd"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True)
class Manifest:
    """How a format writes what it needs.

    Attributes:
        server_file: its name in the server's folder.
        server: its text, from the federation's name and the server's port.
        site_file: its name in a site's folder, from the site's id.
        site: its text, from the site's id.
        metrics: what a site's file says of ``metrics``, for probes; empty where none asks.
    """

    server_file: str
    server: Callable[[str, int], str]
    site_file: Callable[[str], str]
    site: Callable[[str], str]
    metrics: str = ""


MANIFESTS: Mapping[Format, Manifest] = {
    Format.COMPOSE: Manifest(
        "compose.yml", compose.server, lambda _: "compose.yml", compose.site, compose.METRICS
    ),
    Format.SYSTEMD: Manifest(
        "coterie-server.service",
        lambda name, _: systemd.server(name),
        "coterie-{}.service".format,
        systemd.site,
    ),
    Format.KUBERNETES: Manifest(
        "kubernetes.yaml",
        kubernetes.server,
        lambda _: "kubernetes.yaml",
        kubernetes.site,
        kubernetes.METRICS,
    ),
}
