"""A run's folder: what is written into it and read back."""
