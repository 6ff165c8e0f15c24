"""Sums of vectors that nobody sees one by one."""
