"""Tables of a hospital's kind: read, checked, described and made into numbers."""
