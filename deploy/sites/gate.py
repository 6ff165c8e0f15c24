"""Gate before a SuperLink: ``python -m deploy.sites.gate --admin NETWORK ... -- <its arguments>``.

Flower serves all of its interfaces on one port, and in the open-source version whoever reaches
that port may submit a run, which is code that every site executes, and may enrol keys. So only what
sites need is open to everybody, within limits (``deploy/sites/limits.py``); the rest is for the
administrators' networks, by default this machine.

What the gate refuses, what Flower refuses of sites, and who failed to speak TLS is logged. It
stands on ``uvicorn.run`` and, for connections, on asyncio's own ``SSLProtocol``;
``tests/deploy/sites/test_deployment.py`` says if they moved.
"""

import argparse
import asyncio.sslproto
import base64
import hashlib
import ipaddress
import ssl
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from logging import WARNING
from typing import Any

from deploy.sites.limits import BACKLOG, Body, Bounds, Connections, LimitError, Limits

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]
Log = Callable[..., None]

THIS_MACHINE = ("127.0.0.0/8", "::1/128")
_FOR_SITES = "/v1/fleet/"
_JOINING = (f"{_FOR_SITES}activate-node", f"{_FOR_SITES}register-node")
_HEALTH = "/health"
_PUBLIC_KEY = b"flwr-public-key"


class Gate:
    """An ASGI application that lets only administrators past what sites need.

    What sites need is within limits for everybody.
    """

    def __init__(
        self, app: App, admins: Sequence[Network], log: Log, limits: Limits | None = None
    ) -> None:
        self._app = app
        self._admins = admins
        self._log = log
        self._limits = limits or Limits()

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Answer 403 to what is not for the one who asks; log every refusal, whoever refuses."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif _is_for_sites(scope):
            await self._limited(scope, receive, send)
        elif self._is_admin(scope):
            await self._app(scope, receive, self._watched(scope, send))
        else:
            self._refused(scope, 403, "only for administrators")
            await _answer(send, 403, "only for administrators")

    async def _limited(self, scope: Scope, receive: Any, send: Send) -> None:
        """Answer a site within the limits; what is beyond them is not read."""
        try:
            with self._limits.request(scope, receive) as body:
                await self._answered(scope, body, send)
                if body.refusal:
                    raise body.refusal
        except LimitError as refusal:
            self._refused(scope, refusal.status, refusal.why)
            await _answer(send, refusal.status, refusal.why)

    async def _answered(self, scope: Scope, body: Body, send: Send) -> None:
        """Let the application answer, unless the body's refusal is the answer."""
        watched = self._watched(scope, send)

        async def sending(event: MutableMapping[str, Any]) -> None:
            if body.refusal is None:
                await watched(event)

        try:
            await self._app(scope, body.receive, sending)
        except Exception:  # of an application that was told that the peer is gone
            if body.refusal is None:
                raise

    def _is_admin(self, scope: Scope) -> bool:
        address = ipaddress.ip_address(scope["client"][0]) if scope.get("client") else None
        # A client over IPv4 on a socket that takes both has an address inside ::ffff:0:0/96.
        address = getattr(address, "ipv4_mapped", None) or address
        return address is not None and any(address in network for network in self._admins)

    def _watched(self, scope: Scope, send: Send) -> Send:
        async def watched(event: MutableMapping[str, Any]) -> None:
            refused = event["type"] == "http.response.start" and event["status"] in (401, 403)
            if refused or _is_unknown_key(scope, event):
                self._refused(scope, event["status"], "refused by the SuperLink")
            await send(event)

        return watched

    def _refused(self, scope: Scope, status: int, why: str) -> None:
        client = scope["client"][0] if scope.get("client") else "unknown address"
        key = _key_of(scope)
        whose = f", SuperNode key {key}" if key else ""
        self._log(WARNING, "refused %s %s: %d %s%s", client, scope["path"], status, why, whose)


def _is_unknown_key(scope: Scope, event: MutableMapping[str, Any]) -> bool:
    """Return whether a site that tried to connect was turned away."""
    refused: bool = event["type"] == "http.response.start" and event["status"] >= 400
    return refused and scope["path"] in _JOINING


def _key_of(scope: Scope) -> str:
    """Return the beginning of the SHA-256 of the key that a site signs with; empty without one."""
    header = dict(scope["headers"]).get(_PUBLIC_KEY, b"")
    if not header:
        return ""
    try:
        # A PEM block in base64: its lines between the first and the last are the key, again base64.
        lines = base64.b64decode(header, validate=True).splitlines()[1:-1]
        key = base64.b64decode(b"".join(lines), validate=True)
    except ValueError:
        return "malformed"
    return hashlib.sha256(key).hexdigest()[:16]


def _is_for_sites(scope: Scope) -> bool:
    path: str = scope["path"]
    return path == _HEALTH or path.startswith(_FOR_SITES)


async def _answer(send: Send, status: int, why: str) -> None:
    # The rest of a body that nobody reads would come over the connection, so that is closed.
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{why}\n".encode()})


def log_handshakes(log: Log) -> None:
    """Let a connection that fails to speak TLS leave a line; asyncio drops it without a word."""
    protocol: Any = asyncio.sslproto.SSLProtocol
    original = protocol._fatal_error

    def logged(self: Any, error: BaseException, message: str = "") -> None:
        if isinstance(error, ssl.SSLError):
            peer = (self._get_extra_info("peername") or ("unknown address",))[0]
            log(WARNING, "refused %s: no TLS connection: %s", peer, error.reason or error)
        original(self, error, message)

    protocol._fatal_error = logged


def main() -> None:
    """Start Flower's SuperLink with the gate before it."""
    import uvicorn
    from flwr.supercore import log
    from flwr.superlink.cli.flower_superlink import flower_superlink

    parser = argparse.ArgumentParser(prog="deploy.sites.gate")
    parser.add_argument("--admin", action="append", type=ipaddress.ip_network, required=True)
    split = sys.argv.index("--")
    admins = parser.parse_args(sys.argv[1:split]).admin
    sys.argv = ["flower-superlink", *sys.argv[split + 1 :]]
    log_handshakes(log)
    connections = Connections(Bounds(), admins, log)
    connections.watch()
    server: Any = uvicorn
    original = server.run

    def run(*, app: App, **options: Any) -> None:
        # asyncio's own loop: the handshakes of uvloop cannot be watched.
        gate = connections.heard(Gate(app, admins, log))
        original(app=gate, **(options | {"loop": "asyncio", "backlog": BACKLOG}))

    server.run = run
    flower_superlink()


if __name__ == "__main__":
    main()
