"""The optimal-transport cost between two sites' data, and what follows from it."""
