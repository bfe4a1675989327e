"""In: a LoweredGraph, one loop nest per operator. Out: a Schedule, kernels in order with their memory plan.

fuse.py is the stage; inline.py moves cheap values into their readers, split_reductions.py cuts reductions that would
starve the threads, groups.py decides what shares a kernel, build_kernel.py makes the kernels, memory_plan.py the plan;
domain.py and value_cost.py serve them; verify_schedule.py checks a schedule, print_schedule.py shows one."""

from . import print_schedule  # noqa: F401  (gives schedules their text)
