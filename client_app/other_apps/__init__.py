"""Mods for the ClientApp of another Flower app."""
