"""flower-per-cluster: a Flower app with a model for each cluster of sites."""
