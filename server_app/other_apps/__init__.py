"""Strategies for the ServerApp of another Flower app, around strategies of its own."""
