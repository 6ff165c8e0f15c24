"""A SuperNode's own steps in this process: fed by a server, and answered by an app, that lie."""

from dataclasses import replace

from flwr.app import Message, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate import NodeStateFactory

from deploy.sites.bundles import Approved, installed
from deploy.sites.outgoing import Outgoing
from deploy.sites.supernode import Gatekeeper, guarded

SITE = """site = "north"
dataset = "beds"
data-path = "beds.csv"
state-dir = "state"
superlink = "localhost:8000"
root-certificates = "ca.crt"
"""


class LyingServer:
    """What a SuperNode asks a server for: a message, its run, that run's bundle."""

    def __init__(self, fab, content=None, kind="query", **run):
        self.fab = fab
        content = RecordDict() if content is None else content
        self.message = Message(content, dst_node_id=7, message_type=kind)
        self.message.metadata.__dict__["_message_id"] = self.message.object_id
        self.message.metadata.__dict__["_run_id"] = 5
        named = {"fab_id": "coterie/coterie", "fab_version": installed().version}
        named |= {"fab_hash": fab.hash_str}
        self.run = replace(Run.create_empty(5), **(named | run))
        self.asked_for_bundles = 0

    def receive(self):
        return self.message, get_object_tree(self.message)

    def get_run(self, run_id):
        return self.run

    def get_fab(self, fab_hash, run_id):
        self.asked_for_bundles += 1
        return self.fab

    def pull_object(self, run_id, object_id):
        return get_all_nested_objects(self.message)[object_id].deflate()

    def confirm_message_received(self, run_id, message_id):
        pass


def taken_in(node, server):
    """Let Flower take in what a server sends to a node; the number of the run."""
    return node._pull(
        state=node.state,
        object_store=node.store,
        node_config={},
        receive=server.receive,
        get_run=server.get_run,
        get_fab=server.get_fab,
        pull_object=server.pull_object,
        confirm_message_received=server.confirm_message_received,
        trusted_entities=None,
    )


class GuardedNode:
    """A SuperNode of a site with a file, and all that it sends to its server."""

    def __init__(self, folder, own=""):
        self.file = folder / "site.toml"
        self.file.write_text(SITE + own)
        factory = ObjectStoreFactory()
        self.store = factory.store()
        self.state = NodeStateFactory(factory).state()
        self.state.set_node_id(7)
        outgoing = Outgoing.of(self.file)
        self._pull = guarded(
            outgoing.remembering(flower._pull_and_store_message), Gatekeeper(self.file)
        )
        self._push = outgoing.sending(flower._push_messages)
        self.wire = b""
        """Every byte that went out."""
        self.objects = {}
        self.sent = []

    def approve(self, digest):
        Approved.read(self.file).joined(digest).write(self.file)

    def ask(self, server):
        taken_in(self, server)

    def take(self, reply, *, pieces=lambda pieces: pieces):
        """Take a reply from an app, as Flower's handlers do for ``run_clientapp.push_message``."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        tree, objects = get_object_tree(reply), get_all_nested_objects(reply)
        self.take_pieces(
            reply, tree, pieces({key: each.deflate() for key, each in objects.items()})
        )

    def take_pieces(self, reply, tree, pieces):
        proto = message_to_proto(remove_content_from_message(reply))
        session = self.state.start_session(reply.metadata.run_id)
        self.state.store_message_and_object_tree(message_from_proto(proto), tree, session)
        for key, content in pieces.items():
            self.state.store_object(reply.metadata.run_id, session, key, content)

    def push(self):
        """Let Flower send what there is; return it as a server gets it, None: nothing went out."""
        before = len(self.sent)
        self._push(
            state=self.state, object_store=self.store, send=self._send, push_object=self._object
        )
        if len(self.sent) == before:
            return None
        return inflate_object_from_contents(self.sent[-1], dict(self.objects))

    def _send(self, message, tree, seconds):
        self.sent.append(tree.object_id)
        self.wire += message_to_proto(remove_content_from_message(message)).SerializeToString()
        self.wire += tree.SerializeToString()
        return set(get_all_nested_objects(message)), "session"

    def _object(self, run_id, session, object_id, content):
        assert get_object_id(content) == object_id
        self.objects[object_id] = content
        self.wire += object_id.encode() + content
