"""Foreign code: pieces that are not of this repository."""
