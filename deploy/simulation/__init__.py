"""A federation in one process."""
