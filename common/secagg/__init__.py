"""Secure sums: of vectors that nobody sees one by one."""
