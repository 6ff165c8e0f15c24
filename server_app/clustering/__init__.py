"""Who belongs together: groups of sites, and what groups them."""
