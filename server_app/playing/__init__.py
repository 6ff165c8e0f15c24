"""Playing: rounds as functions of a state, and those who listen to them."""
