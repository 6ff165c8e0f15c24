"""Limits of what the gate takes from sites, and from whoever says it is one: counts, bytes, times.

Flower reads a request's whole body before it asks whose it is, without a bound. So bodies are
counted here as they come, and a connection that says nothing is not kept.
"""

import asyncio
import asyncio.sslproto
import hashlib
import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

Log = Callable[..., None]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MIB = 1 << 20
BACKLOG = 128
"""Connections that are taken at once, before any of them can be cut."""
_SIGNATURE = b"flwr-signature"
_KNOWN_PEERS = 4096  # whose rates are remembered; the longest silent ones are forgotten


class LimitError(Exception):
    """A request that is not let through, with the status of the answer to it.

    503 is what a SuperNode tries again after a while; what it cannot mend gets another.
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


@dataclass(frozen=True)
class Bounds:
    """How much of everything; a peer is an IPv4 address or a /64 of IPv6."""

    body: int = 16 * MIB
    """Bytes of one body; Flower sends arrays in pieces of 5 MiB."""
    peer_bytes: int = 64 * MIB
    """Of all bodies of one peer that are being worked on."""
    bytes: int = 256 * MIB
    """Of all."""
    peer_requests: int = 64
    """Of one peer that are being worked on."""
    requests: int = 1024
    rate: float = 50.0
    """Requests a second of one peer, on average; a site that waits asks every 3 s."""
    burst: float = 500.0
    pause: float = 30.0
    """Seconds between two parts of a body."""
    transfer: float = 600.0
    """Seconds for the whole of a body."""
    peer_connections: int = 128
    """Of one peer, an administrator's machine excepted."""
    connections: int = 1000
    """Of all; an open connection holds 0.1 MiB."""
    silence: float = 60.0
    """Seconds before the first request of a connection."""
    replay: float = 310.0
    """Seconds for which Flower takes a signature, with the slack for clocks."""


@dataclass
class _Allowance:
    tokens: float
    at: float


@dataclass
class Limits:
    """What is being worked on now, by peer; asyncio's one thread changes it."""

    bounds: Bounds = field(default_factory=Bounds)
    clock: Callable[[], float] = time.monotonic
    _requests: Counter[str] = field(default_factory=Counter)
    _bytes: Counter[str] = field(default_factory=Counter)
    _rates: OrderedDict[str, _Allowance] = field(default_factory=OrderedDict)
    _signatures: OrderedDict[bytes, float] = field(default_factory=OrderedDict)

    @contextmanager
    def request(self, scope: Event, receive: Receive) -> Iterator["Body"]:
        """Yield a request's body, which is counted as it comes; give all back at the end.

        Raises:
            LimitError: too many, too often, or a signature that was used before.
        """
        peer, headers = peer_of(scope), dict(scope["headers"])
        self._check_rate(peer)
        if self._requests[peer] >= self.bounds.peer_requests:
            raise LimitError(503, "too many requests of this peer at once")
        if self._requests.total() >= self.bounds.requests:
            raise LimitError(503, "too many requests at once")
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or len(declared) > 12 or int(declared) > self.bounds.body:
            raise LimitError(413, f"a body above {self.bounds.body} bytes")
        self._use(headers.get(_SIGNATURE, b""))
        body = Body(self, peer, receive)
        self._requests[peer] += 1
        try:
            yield body
        finally:
            _less(self._requests, peer, 1)
            _less(self._bytes, peer, body.size)

    def count(self, peer: str, size: int, of_body: int) -> None:
        """Count some bytes of a body; :class:`LimitError` beyond a bound."""
        self._bytes[peer] += size
        if of_body > self.bounds.body:
            raise LimitError(413, f"a body above {self.bounds.body} bytes")
        if self._bytes[peer] > self.bounds.peer_bytes:
            raise LimitError(503, "too many bytes of this peer at once")
        if self._bytes.total() > self.bounds.bytes:
            raise LimitError(503, "too many bytes at once")

    def _check_rate(self, peer: str) -> None:
        now = self.clock()
        known = self._rates.pop(peer, None) or _Allowance(self.bounds.burst, now)
        gained = (now - known.at) * self.bounds.rate
        known.tokens, known.at = min(self.bounds.burst, known.tokens + gained), now
        self._rates[peer] = known
        while len(self._rates) > _KNOWN_PEERS:
            self._rates.popitem(last=False)
        if known.tokens < 1:
            raise LimitError(503, "too many requests of this peer")
        known.tokens -= 1

    def _use(self, signature: bytes) -> None:
        """Refuse a signature of the time that came before: a SuperNode makes one per request."""
        now = self.clock()
        while self._signatures and next(iter(self._signatures.values())) < now:
            self._signatures.popitem(last=False)
        if not signature:
            return
        digest = hashlib.sha256(signature).digest()
        if digest in self._signatures:
            raise LimitError(403, "a signature that was used before")
        self._signatures[digest] = now + self.bounds.replay


@dataclass
class Body:
    """A request's body on its way in."""

    limits: Limits
    peer: str
    _receive: Receive
    size: int = 0
    refusal: LimitError | None = None
    """Why no more of it was taken; the application was told that the peer is gone."""
    _until: float = 0.0
    _whole: bool = False

    async def receive(self) -> Event:
        """Return the next event; a disconnection for a body that is too large or too slow."""
        try:
            return await self._next()
        except LimitError as error:
            self.refusal = self.refusal or error
            return {"type": "http.disconnect"}

    async def _next(self) -> Event:
        if self.refusal:
            raise self.refusal
        if self._whole:
            return await self._receive()  # which waits for the end of the connection
        bounds, now = self.limits.bounds, self.limits.clock()
        self._until = self._until or now + bounds.transfer
        try:
            event = await asyncio.wait_for(self._receive(), min(bounds.pause, self._until - now))
        except TimeoutError:
            raise LimitError(408, "a body that does not come") from None
        if event["type"] == "http.request":
            size = len(event.get("body", b""))
            self.size += size
            self.limits.count(self.peer, size, self.size)
            self._whole = not event.get("more_body", False)
        return event


def peer_of(scope: Event) -> str:
    """Return whose limits a request counts for."""
    if not scope.get("client"):
        return ""
    return _peer(scope["client"][0])


def _peer(host: str) -> str:
    address = ipaddress.ip_address(host.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def _less(counter: Counter[str], peer: str, amount: int) -> None:
    counter[peer] -= amount
    if counter[peer] <= 0:
        del counter[peer]


class Connections:
    """Open connections, from before their TLS handshake on; those above the bounds are cut."""

    def __init__(self, bounds: Bounds, admins: Sequence[Network], log: Log) -> None:
        self._bounds = bounds
        self._admins = admins
        self._log = log
        self._of_peer: Counter[str] = Counter()
        self._silent: dict[tuple[str, int], asyncio.TimerHandle] = {}
        self._said: OrderedDict[str, float] = OrderedDict()

    def watch(self) -> None:
        """Let asyncio say when a connection is made and lost; its class for TLS is the only one."""
        protocol: Any = asyncio.sslproto.SSLProtocol
        protocol.max_size = 1 << 16  # of its buffer for reading, 256 KiB by default
        made, lost = protocol.connection_made, protocol.connection_lost
        connections = self

        def connection_made(self: Any, transport: Any) -> None:
            known = connections.made(transport) if self._server_side else None
            if not transport.is_closing():  # a handshake costs time and memory
                made(self, transport)
            self._coterie_peer = known

        def connection_lost(self: Any, error: BaseException | None) -> None:
            lost(self, error)
            if known := getattr(self, "_coterie_peer", None):
                connections.lost(known)

        protocol.connection_made, protocol.connection_lost = connection_made, connection_lost

    def made(self, transport: Any) -> tuple[str, int] | None:
        """Count a connection and return its address, or cut it and return None."""
        name = transport.get_extra_info("peername")
        if not name:
            return None
        peer, here = _peer(name[0]), (name[0], name[1])
        admin = any(ipaddress.ip_address(name[0]) in network for network in self._admins)
        full = self._of_peer.total() >= self._bounds.connections
        if full or (not admin and self._of_peer[peer] >= self._bounds.peer_connections):
            self._say(name[0])
            transport.abort()
            return None
        self._of_peer[peer] += 1
        loop = asyncio.get_running_loop()
        self._silent[here] = loop.call_later(self._bounds.silence, transport.abort)
        return here

    def heard(self, app: Any) -> Any:
        """Return an ASGI application that keeps the connections over which requests come."""

        async def application(scope: Event, receive: Receive, send: Any) -> None:
            if scope.get("client") and (timer := self._silent.pop(tuple(scope["client"]), None)):
                timer.cancel()
            await app(scope, receive, send)

        return application

    def lost(self, here: tuple[str, int]) -> None:
        """Forget a connection."""
        _less(self._of_peer, _peer(here[0]), 1)
        if timer := self._silent.pop(here, None):
            timer.cancel()

    def _say(self, host: str) -> None:
        """Log at most a line a minute for one peer: who is refused must not fill the disk."""
        now = time.monotonic()
        if now - self._said.get(host, -60.0) >= 60:
            self._said[host] = now
            self._log(WARNING, "refused %s: too many connections", host)
        while len(self._said) > _KNOWN_PEERS:
            self._said.popitem(last=False)
