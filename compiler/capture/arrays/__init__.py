"""Arrays of numpy during capture: tensors of the graph that the program sees as arrays."""
