"""Secure products: of two sites' rows that neither shows."""
