"""Federations of sites on separate machines."""
