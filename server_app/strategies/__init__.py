"""Strategies: classes of Flower's, one file per message flow."""
