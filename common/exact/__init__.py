"""Exact models: learners that are fitted from sums over rows, whoever holds these."""

from common.exact.contract import Fit, Rows, SummedModel

__all__ = ["Fit", "Rows", "SummedModel"]
