"""Policy of a site: what of an app's replies may leave it, held in the SuperNode's process."""
