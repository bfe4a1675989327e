"""In: a LoweredGraph, one loop nest per operator. Out: a Schedule, kernels in order with their memory plan.

fuse.py is the stage; inline.py moves cheap values into their readers, split.py cuts reductions that would starve the threads,
groups.py decides what shares a kernel, build.py makes the kernels, memory.py the plan; domain.py and cost.py serve them;
interpret.py runs a schedule slowly and surely, verify.py checks one, printer.py shows one."""
