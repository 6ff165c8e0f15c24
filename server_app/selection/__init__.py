"""Who trains this round."""
