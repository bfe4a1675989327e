"""One rank: `torchrun ... -m tcompile.kernel_magics.ranks`."""

from .rank_process import main

main()
