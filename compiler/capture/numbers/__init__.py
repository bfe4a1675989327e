"""Numbers that vary from call to call: where they come from, what they meet, how they are read."""
