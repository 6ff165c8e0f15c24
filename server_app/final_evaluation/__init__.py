"""Final evaluation: what the sites tell of their held-out rows after the last round."""
