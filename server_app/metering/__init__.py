"""Metering: what messages and work cost."""
