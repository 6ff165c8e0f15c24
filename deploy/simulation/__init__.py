"""Simulation: a federation in one process."""
