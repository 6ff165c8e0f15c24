"""Comparisons: many runs, one table."""
