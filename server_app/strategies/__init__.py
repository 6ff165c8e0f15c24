"""The custom Strategy classes, one file per message flow."""
