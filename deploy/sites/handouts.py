"""Handouts: texts that provisioning puts into each recipient's folder."""

from collections.abc import Mapping
from typing import Any

import tomli_w


def server(name: str) -> str:
    """Return the instructions for whoever runs the server."""
    return f"""# The server of {name}

`server.key` belongs to this server alone. Everything else in this folder is public.

    coterie doctor --server .    # says what is not ready
    coterie serve .              # starts the SuperLink, its database in state/
    coterie register .           # enrols and revokes keys; again after every `coterie provision`
    coterie submit . strategy=fedavg num-server-rounds=20 output-dir=/absolute/folder

`register` and `submit` talk to the SuperLink from this machine; from elsewhere they are refused,
because whoever may submit a run decides what the sites are asked. Sites run the Coterie that is
installed there: install the same one here.
"""


def site(name: str, site_id: str, fingerprint: str) -> str:
    """Return the instructions for a site."""
    return f"""# Site {site_id} of {name}

Nothing in this folder is secret. Copy `ca.crt` and `site.toml` into the folder in which
`coterie site init {site_id}` made the keys, and edit `site.toml`: it is yours, and no run can
change it.

    coterie doctor --site site.toml     # says what is not ready
    coterie site --config site.toml     # starts the site

It runs the Coterie that is installed here, and no code that a run may send, unless `coterie
approve` let another Flower app in.

The identity that the others know this site by has the fingerprint

    {fingerprint}

Read it out to them, and let them read out theirs, before you list them in `peers`. A fingerprint
that came from the server proves nothing.
"""


def site_file(site_id: str, values: Mapping[str, Any], peers: Mapping[str, str]) -> str:
    """Return a site's file, and whom it could pin."""
    listed = ",".join(f"{name}:{digits}" for name, digits in sorted(peers.items()))
    return f"""# What {site_id} says about itself; paths begin at this file's folder.
# coterie doctor --site site.toml explains what is missing; docs/deployment.md lists all keys.
{tomli_w.dumps(values)}
# Other sites' identities as the coordinator knows them: compare with their owners, then uncomment.
# peers = "{listed}"
"""
