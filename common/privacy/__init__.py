"""Differential privacy: mechanisms, what they add up to, and a site's book of it."""

from common.privacy.closed_form import gaussian_sigma, zcdp_epsilon

__all__ = ["gaussian_sigma", "zcdp_epsilon"]
