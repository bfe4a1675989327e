"""The graph stage: a captured torch-level graph in, a functional graph of a closed operator set out.

captured.py     CapturedGraph, what goes in
tensor.py       TraceTensor: tensors without data on which torch code runs; meta/ gives the metadata of results
traced_calls.py calling torch functions on them (factories included); fallback.py: operators without a rule
wrappers/       tensors of wrapper subclasses, whose classes say what operators do
decompose/      composite operators as the closed set's; ops/closed_set.py documents that set
aten.py         AtenGraph, what comes out; verify_graph.py checks it, aten_interpreter.py runs it with torch's kernels
to_aten.py      the stage itself: it runs the captured graph on TraceTensors
functionalize.py  turns what is heard meanwhile into a functional graph
"""
