"""What every Python object has: attributes by its class, and a text."""
