"""Client side: what runs on a site, its data, its training, and what it answers."""
