"""Products of two sites' rows that neither shows."""
