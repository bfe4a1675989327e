"""`python -m tcompile`: see cli.py."""

import os
import sys

from .cli import main

if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # who read the output has gone (`| head`)
        # or the interpreter says so once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)
