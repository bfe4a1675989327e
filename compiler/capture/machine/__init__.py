"""The interpreter: runs canonical bytecode over stack values, frame by frame."""
