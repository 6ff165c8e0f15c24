"""Papers: the experiments that they report, as comparisons and programs."""
