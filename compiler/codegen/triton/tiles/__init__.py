"""Kernels that hold a tile of rows and go through keys: attention, its gradients, chains of products."""
