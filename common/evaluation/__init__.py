"""Evaluation: arithmetic of what is told of held-out rows."""
