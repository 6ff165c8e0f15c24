"""Tracking: a run's rounds sent to MLflow, TensorBoard or Weights & Biases while it is played."""
