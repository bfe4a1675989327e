"""Schedules become source text.

In: `Schedule` (fusion/schedule.py). Out: `Generated` (generated.py): one C++ file per distinct kernel and the host plan
as readable Python text. Nothing is compiled or loaded here; `runtime` does that.
"""
