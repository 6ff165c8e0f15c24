"""Pilot: a few rounds on folds of the sites' training rows, and who gains by which candidate."""
