"""Approval of code: bundles, what a site says of them, the SuperNode that holds to it."""
