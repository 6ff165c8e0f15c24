"""ServerApp that Flower loads: the one of the Coterie that is installed where it runs."""

from coterie import flower

app = flower.server_app
