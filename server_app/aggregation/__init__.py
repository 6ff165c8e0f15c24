"""Aggregation: how updates become a model."""
