"""Deployment: how a federation is started, in this process or on separate machines."""
