"""What messages and work cost."""
