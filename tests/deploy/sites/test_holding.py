"""Empty answers that are kept back: until something was sent, for a while, and never for nobody."""

import asyncio
import ipaddress

import pytest
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.supernode.fleet_http_client import FleetHttpClient

from deploy.sites import holding
from deploy.sites.gate import THIS_MACHINE, Gate
from deploy.sites.holding import PULL, Holding
from deploy.sites.limits import Limits

EMPTY = PullMessagesResponse().SerializeToString()


class SuperLink:
    """An application that has no messages until it is given one; each is for one asker."""

    def __init__(self):
        self.messages = []
        self.bodies = []

    async def __call__(self, scope, receive, send):
        if scope["path"] != PULL:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"pushed"})
            return
        self.bodies.append((await receive())["body"])
        body = self.messages.pop(0) if self.messages else EMPTY
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


class Peer:
    """A site that sends its request in two parts and stays until it leaves."""

    def __init__(self, path=PULL, body=b"request", client="10.0.0.1"):
        half = len(body) // 2
        self.parts = [
            {"type": "http.request", "body": body[:half], "more_body": True},
            {"type": "http.request", "body": body[half:]},
        ]
        self.scope = {"type": "http", "path": path, "headers": [], "client": (client, 1)}
        self.left = asyncio.Event()
        self.got = []

    async def receive(self):
        if self.parts:
            return self.parts.pop(0)
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, event):
        self.got.append(event)

    @property
    def body(self):
        return b"".join(event.get("body", b"") for event in self.got)


def play(scenario, **options):
    async def playing():
        app = SuperLink()
        admins = [ipaddress.ip_network(network) for network in THIS_MACHINE]
        gate = Gate(app, admins, lambda *words: None, Limits())
        gate._holding = Holding(**options)
        return await scenario(app, gate)

    return asyncio.run(playing())


async def ask(gate, peer):
    await gate(peer.scope, peer.receive, peer.send)
    return peer


def test_flowers_answer_without_messages_is_empty_and_its_patience_longer_than_ours():
    assert EMPTY == b""
    with FleetHttpClient.from_server_address("localhost:1", True, None, []) as client:
        assert client._client.timeout.read >= 2 * holding.SECONDS


def test_a_site_that_waits_gets_what_is_sent_at_once():
    async def scenario(app, gate):
        waiting = asyncio.create_task(ask(gate, peer := Peer(body=b"who I am")))
        await asyncio.sleep(0.05)
        assert gate._holding.held == 1
        assert not peer.got
        app.messages.append(b"a message")
        run = Peer(holding.PUSHES[1], client="127.0.0.1")
        await ask(gate, run)
        assert run.body == b"pushed"
        await asyncio.wait_for(waiting, 5)
        assert peer.body == b"a message"
        assert app.bodies == [b"who I am", b"who I am"]
        assert gate._holding.held == 0

    play(scenario, seconds=60)


def test_what_is_there_already_is_not_kept_back():
    async def scenario(app, gate):
        app.messages.append(b"a message")
        assert (await ask(gate, Peer())).body == b"a message"

    play(scenario, seconds=60)


def test_nothing_is_answered_after_a_while_without_asking_again():
    async def scenario(app, gate):
        peer = await ask(gate, Peer())
        assert peer.got[0]["status"] == 200
        assert peer.body == EMPTY
        assert len(app.bodies) == 1

    play(scenario, seconds=0.3)


def test_a_message_is_not_taken_for_a_site_that_left():
    async def scenario(app, gate):
        peer = Peer()
        waiting = asyncio.create_task(ask(gate, peer))
        await asyncio.sleep(0.05)
        peer.left.set()
        await asyncio.wait_for(waiting, 5)
        app.messages.append(b"a message")
        await ask(gate, Peer(holding.PUSHES[0], client="127.0.0.1"))
        await asyncio.sleep(0.2)
        assert (app.messages, peer.got) == ([b"a message"], [])
        assert gate._holding.held == 0

    play(scenario, seconds=60)


def test_those_who_are_too_many_are_answered_at_once(monkeypatch):
    monkeypatch.setattr(holding, "_OF_PEER", 2)

    async def scenario(app, gate):
        waiting = [asyncio.create_task(ask(gate, Peer())) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert (await asyncio.wait_for(ask(gate, Peer()), 5)).body == EMPTY
        other = asyncio.create_task(ask(gate, Peer(client="10.0.0.2")))
        await asyncio.sleep(0.05)
        assert gate._holding.held == 3
        for task in (*waiting, other):
            task.cancel()

    play(scenario, seconds=60)


@pytest.mark.parametrize("path", ["/v1/fleet/push-messages", "/v1/control/list-runs"])
def test_others_wake_nobody(path):
    async def scenario(app, gate):
        waiting = asyncio.create_task(ask(gate, Peer()))
        await asyncio.sleep(0.05)
        await ask(gate, Peer(path, client="127.0.0.1"))
        await asyncio.sleep(0.2)
        assert len(app.bodies) == 1
        assert not waiting.done()
        waiting.cancel()

    play(scenario, seconds=60)
