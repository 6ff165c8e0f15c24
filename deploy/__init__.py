"""Deployment: how a federation is started, in this process or on separate machines."""

import os

# Before anything of Flower's is imported, which reads it then: no command of ours reports to it,
# unless whoever runs it has said otherwise.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
