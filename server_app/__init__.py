"""What runs on the server: methods, strategies, and the run folder."""
