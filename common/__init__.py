"""Common ground of server and sites: settings, messages, data, networks, arithmetic."""
