"""Tensors and operators of several processes."""
