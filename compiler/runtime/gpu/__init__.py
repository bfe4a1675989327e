"""Running generated Triton kernels: from source text to launches.

worker.py is the process that compiles, workers.py keeps such processes; compile.py asks them, and the disk cache
before; device.py says what this machine has; gpu_kernels.py makes callables of binaries; gpu_graph.py is the runtime
stage for a graph on a GPU; cuda_graphs.py replays plans as CUDA graphs, in which counters.py clears the counters of
products at once."""
