"""A real IPython shell, in this process, with the magics on a stand-in engine."""

import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


@pytest.fixture
def shell():
    from IPython.core.interactiveshell import InteractiveShell
    from standin import StandIn
    from tcompile.kernel_magics import magics

    InteractiveShell.clear_instance()
    sh = InteractiveShell.instance(colors="nocolor")
    sh.history_manager.enabled = False
    sh.tcompile = magics.load(sh, StandIn())
    yield sh
    magics.unload(sh)
    sh.reset(new_session=False)
    InteractiveShell.clear_instance()
