"""What every part may use: locks that survive a fork, quoting, names of files, facts of the processor."""
