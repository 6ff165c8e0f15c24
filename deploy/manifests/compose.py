"""Compose files: a server or a site in a container, with its folder mounted, nothing baked in."""

from collections.abc import Mapping
from typing import Any

import yaml

from deploy.manifests.ports import port_of_sites

METRICS = "127.0.0.1:9464"
"""Where a site's probe asks, inside its container."""
_HEAD = (
    "# {what}: docker compose up -d, in this folder. COTERIE_IMAGE names the image;\n"
    "# COTERIE_UID and COTERIE_GID own the folder. docs/operations.md has the rest.\n"
)
_HARDENED: Mapping[str, Any] = {
    "image": "${COTERIE_IMAGE:-coterie}",
    "user": "${COTERIE_UID:-10001}:${COTERIE_GID:-10001}",
    "environment": {"HOME": "/tmp", "OMP_NUM_THREADS": "${OMP_NUM_THREADS:-1}"},  # noqa: S108
    "read_only": True,
    "tmpfs": ["/tmp"],  # noqa: S108 - of the container
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
    "restart": "on-failure",
    "stop_grace_period": "30s",
}


def server(name: str, port: int) -> str:
    """Return the file of a federation's server; its folder holds the keys and keeps its state."""
    probe = (
        "import ssl, urllib.request as u; "
        f"u.urlopen('https://localhost:{port}/health', "
        "context=ssl.create_default_context(cafile='/server/ca.crt'), timeout=10)"
    )
    # What passes a port into a container may come from inside it to the gate's eyes.
    inside = str(port_of_sites(port))
    service = {
        **_HARDENED,
        "command": ["serve", "/server", "--forwarded-port", inside, "--log-format", "json"],
        "ports": [f"{port}:{inside}"],
        "volumes": [".:/server", "${COTERIE_RUNS:-./runs}:/runs"],
        "healthcheck": _checked(probe),
    }
    return _written(f"The server of {name}", service)


def site(site_id: str) -> str:
    """Return the file of a site; its folder holds its keys and keeps its state."""
    service = {
        **_HARDENED,
        "command": ["site", "--config", "/site/site.toml", "--log-format", "json"],
        "volumes": [".:/site", "${COTERIE_DATA:?the folder of the site's data}:/data:ro"],
        "healthcheck": _checked(
            f"import urllib.request as u; u.urlopen('http://{METRICS}/health', timeout=10)"
        ),
    }
    return _written(f"Site {site_id}", service)


def _checked(program: str) -> Mapping[str, Any]:
    return {
        "test": ["CMD", "python", "-c", program],
        "interval": "30s",
        "timeout": "15s",
        "retries": 3,
        "start_period": "120s",
    }


def _written(what: str, service: Mapping[str, Any]) -> str:
    kind = "server" if what.startswith("The server") else "site"
    values = {"services": {kind: dict(service)}}
    return _HEAD.format(what=what) + str(yaml.safe_dump(values, sort_keys=False, width=100))
