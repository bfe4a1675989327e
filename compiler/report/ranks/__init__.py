"""Several processes that ran one cell, beside each other: what a report holds of them, and how it is told."""
