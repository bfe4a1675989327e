"""Tensors during capture: calls, errors, tensors of classes of the program, what it exchanged of torch."""
