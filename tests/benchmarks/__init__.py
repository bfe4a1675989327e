"""The budgets, measured: `python -m tests.benchmarks.run`. Results are kept in results/, one file a run."""
