"""The notebook side of tcompile: in comes a cell, out go its result and a report under it.

options.py reads the magic's line, cell.py runs the cell, timing.py compares engines, display.py and progress.py show,
render/ draws a report, widgets.py adds controls, magics.py ties them to IPython. Nothing here is imported by the
compiler.
"""
