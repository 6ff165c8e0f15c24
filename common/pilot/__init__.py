"""Pilot: arithmetic of a few cross-validated rounds that say who gains by training together."""
