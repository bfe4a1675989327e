"""From a call to a compiled entry: what is compiled, when, and how often. Wrapped callables, modules, cells."""
