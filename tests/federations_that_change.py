"""A grid whose sites come and go."""

from common import messages
from deploy.simulation.grid import InProcessGrid


class Changing(InProcessGrid):
    """A grid whose nodes are connected in some rounds only: ``present[node]`` says in which."""

    def __init__(self, *args, present, hook=None, **more):
        super().__init__(*args, **more)
        self.present, self.hook, self.round = present, hook, 1

    def get_node_ids(self):
        nodes = super().get_node_ids()
        return [node for node in nodes if self.round in self.present.get(node, range(99))]

    def send_and_receive(self, outgoing, *, timeout=None):
        outgoing = list(outgoing)
        connected = set(self.get_node_ids())
        assert all(message.metadata.dst_node_id in connected for message in outgoing)
        replies = list(super().send_and_receive(outgoing, timeout=timeout))
        if self.hook:
            replies = [self.hook(self, message) for message in replies]
        if outgoing and outgoing[0].metadata.message_type == messages.EVALUATE:
            self.round += 1
        return replies
