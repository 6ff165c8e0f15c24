"""Live page: a run or a comparison looked at while it goes on."""
