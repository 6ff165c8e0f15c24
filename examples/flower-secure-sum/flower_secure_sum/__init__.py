"""flower-secure-sum: a Flower app whose server sees sums of updates alone."""
