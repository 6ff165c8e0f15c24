"""Training: what a site minimises, and the code that does it."""
