"""Strategies: classes of Flower's that play runs."""
