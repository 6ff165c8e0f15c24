"""Selection: who trains this round."""
