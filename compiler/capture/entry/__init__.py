"""What a frame becomes: its result, the text of its entry, the graph and the effects."""
