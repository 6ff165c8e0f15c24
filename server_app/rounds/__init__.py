"""Rounds: a round's way through the server, who takes part, what is sent, what may count."""
