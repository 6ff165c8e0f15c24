"""Exact models: learners that are fitted from sums over rows, whoever holds these."""

from common.exact.contract import SummedFit, SummedModel, TableRows

__all__ = ["SummedFit", "SummedModel", "TableRows"]
