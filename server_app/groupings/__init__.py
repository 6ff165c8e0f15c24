"""Groupings: who is described how and when, and who belongs together; one in each file."""
