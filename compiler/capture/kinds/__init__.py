"""Python values by their kind: how each is called, read, combined and changed."""
