"""Products of matrices as loop nests, and convolutions that are such products."""
