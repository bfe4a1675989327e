"""Contractions in tiles as one kernel: attention, its gradients and chains of products, found among the steps."""
