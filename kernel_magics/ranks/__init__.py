"""`%%tcompile ranks=N`: the cell runs in N processes, and one report has them beside each other.

plan.py reads the option, launcher.py starts the processes by torch.distributed.run and talks to them, rank_set.py runs
a cell on all of them and ends it on all. rank_process.py is what each process runs. docs/ranks.md says why so.
"""
