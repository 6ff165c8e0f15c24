"""A site's warm process: what every message needs, imported once."""
