"""Protection: what may be seen of a site, and by whom."""
