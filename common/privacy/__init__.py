"""Differential privacy: mechanisms, what they add up to, and a site's book of it."""
