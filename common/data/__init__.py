"""Data sets, from a name or from a user's files."""
