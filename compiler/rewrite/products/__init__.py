"""Matrix products exchanged for others: several as one, padded, with their bias, as their transpose."""
