"""Server side: methods, strategies, and the run folder."""
