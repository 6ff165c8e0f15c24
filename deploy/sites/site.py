"""Start of a site: a SuperNode with the site's own data."""

import os
import shlex
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import tomli_w
from pydantic import Field, model_validator

from client_app.site_config import SiteConfig
from common.config import Scalar, read_toml
from common.errors import ConfigError
from deploy.sites.bundles import INSTALLED, Approved
from deploy.sites.flower import environment

NODE_CONFIG = "node-config.toml"
SUPERNODE = f"{__package__}.supernode"
"""Module that runs a site's SuperNode; only named here, since it takes seconds to import."""


class SiteFile(SiteConfig):
    """A ``site.toml``: the site's own say, and how it reaches the server."""

    superlink: str = Field(
        pattern=r"^(\[[0-9A-Fa-f:]+\]|[^\s:/]+):\d{1,5}$", description="HOST:PORT of the server"
    )
    root_certificates: str = Field(
        min_length=1, description="file with the certificate of the federation's authority"
    )
    supernode_key: str = Field(
        "supernode", min_length=1, description="file with the key that coterie site init made"
    )
    port: int = Field(
        0, ge=0, le=65535, description="on this machine, for its own processes; 0: a free one"
    )

    metrics: str = Field(
        "",
        pattern=r"^([^\s:/]+:\d{1,5})?$",
        description="HOST:PORT of this machine for /metrics and /health; empty: neither",
    )

    approved: str = Field(
        INSTALLED,
        description="programs that it runs, separated by commas: installed, the Coterie that is "
        "installed here; digests of other Flower apps' bundles, which coterie approve wrote; any: "
        "whatever a run sends",
    )

    path_keys: ClassVar[tuple[str, ...]] = (
        *SiteConfig.path_keys,
        "root_certificates",
        "supernode_key",
    )

    @model_validator(mode="after")
    def _approves(self) -> Self:
        try:
            Approved.parse(self.approved)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return a site's file with absolute paths; :class:`ConfigError` if it cannot be used."""
        found = cls.parse(read_toml(path), source=str(path))
        if not found.data_path:
            raise ConfigError(f"{path}: data-path is missing: name the site's own file or folder")
        return found.with_absolute_paths(os.path.abspath(path.parent))

    @property
    def node_config(self) -> dict[str, Scalar]:
        """What the site's client processes are told: everything but the connection."""
        own = {name.replace("_", "-") for name in SiteConfig.model_fields}
        return {key: value for key, value in self.to_dict().items() if key in own}


@dataclass(frozen=True)
class Node:
    """A SuperNode about to be started."""

    command: list[str]
    env: dict[str, str]

    @property
    def words(self) -> str:
        """The command as a person types it."""
        return shlex.join(self.command)

    @classmethod
    def of(cls, site: SiteFile, file: Path) -> Self:
        """Write the site's node-config into its state-dir and return how to start it.

        Args:
            site: what its file says.
            file: that file.
        """
        state = Path(site.state_dir)
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        # In a file, since Flower's own syntax for the command line knows no quotes in a text.
        config = state / NODE_CONFIG
        config.write_text(tomli_w.dumps(site.node_config), encoding="utf-8")
        config.chmod(0o600)
        command = [
            *(sys.executable, "-P", "-m", SUPERNODE, str(file.absolute())),
            *("--superlink", site.superlink),
            *("--root-certificates", site.root_certificates),
            *("--auth-supernode-private-key", site.supernode_key),
            *("--port", str(site.port or free_port())),
            *("--node-config", str(config)),
        ]
        # Each site has a home of its own, so that several on one machine share nothing.
        return cls(command, environment(FLWR_HOME=str(state / "flower")))


def free_port() -> int:
    """Return a port on this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
