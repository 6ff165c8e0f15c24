"""What server and sites share: settings, messages, data, networks."""
