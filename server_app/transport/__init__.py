"""Transport: the optimal-transport cost between two sites' data, and what follows from it."""

from server_app.transport.pair_costs import ot_cost

__all__ = ["ot_cost"]
