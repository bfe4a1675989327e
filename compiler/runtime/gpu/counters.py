"""The counters of library products in a CUDA graph, cleared by one node at its beginning.

Some of cuBLASLt's kernels share out their tiles by a counter of four bytes in their workspace, which is cleared before
each of them. In a graph that is a node between two kernels that would follow on each other: 5 us on an H200. So each
product of a graph has a workspace of its own, and the graph is changed before it is instantiated. What came before such
a node and what came behind it follow on each other, and one node clears all workspaces before anything else. What else
writes a workspace, or clears it twice, stays as it was recorded.
"""

from __future__ import annotations

import ctypes
import functools
from collections import defaultdict
from typing import Any

import torch

from ...native import native

__all__ = ["Counters", "clear_first"]

# bytes of one product's workspace, and how many: products beyond them have theirs cleared as recorded
SLOT, SLOTS = 1024, 512
MEMSET = 2  # CU_GRAPH_NODE_TYPE_MEMSET


class Counters:
    """`with Counters(index) as c:` around the recording of c.graph; after it c.graph is instantiated. What is recorded
    in this thread meanwhile finds workspaces here (native/gemm.c); the graph keeps their memory."""

    def __init__(self, index: int, wanted: bool = True):
        self.index, self.driver = index, _driver() if wanted else None
        self.graph = torch.cuda.CUDAGraph(keep_graph=True) if self.driver is not None else torch.cuda.CUDAGraph()

    def __enter__(self) -> Counters:
        if self.driver is not None:
            self.memory = torch.empty(SLOT * SLOTS, dtype=torch.uint8, device=torch.device("cuda", self.index))
            native.gemm_workspaces(self.memory.data_ptr(), SLOT, SLOTS)
        return self

    def __exit__(self, failed: Any, *_: Any) -> None:
        if self.driver is None:
            return
        used = native.gemm_workspaces(0, 0, 0)
        if failed is None:
            if used:
                self.graph.workspaces = self.memory
                clear_first(_Nodes(self.driver, self.graph.raw_cuda_graph()), self.memory.data_ptr(), used)
            self.graph.instantiate()


def clear_first(graph: Any, base: int, used: int) -> int:
    """Clear the first `used` slots from address `base` on by one node before all others, for the nodes that clear one
    each; how many those were.
    """
    by_slot: dict[int, list[int]] = defaultdict(list)
    for node in graph.memsets():
        address, value, n = graph.memset(node)
        slot, at = divmod(address - base, SLOT)
        if 0 <= slot < used:
            by_slot[slot].append(node if value == 0 and at + n <= SLOT else 0)
    alone = [nodes[0] for nodes in by_slot.values() if len(nodes) == 1 and nodes[0]]
    if len(alone) < 2:
        return 0
    gone = 0
    for node in alone:
        before, behind = graph.before(node), graph.behind(node)
        if before is None or behind is None:  # (edges that mean more than an order)
            continue
        for b in behind:
            known = graph.before(b) or ()
            for a in before:
                if a not in known:
                    graph.connect(a, b)
        graph.destroy(node)
        gone += 1
    if not gone:
        return 0
    roots = graph.roots()
    first = graph.clear(base, used * SLOT)
    for root in roots:
        graph.connect(first, root)
    return gone


class _Memset(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS"""

    _fields_ = [
        ("address", ctypes.c_uint64),
        ("pitch", ctypes.c_size_t),
        ("value", ctypes.c_uint),
        ("element", ctypes.c_uint),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    ]


class _Nodes:
    """The nodes of a CUgraph. Raises RuntimeError where the driver refuses."""

    def __init__(self, driver: ctypes.CDLL, graph: int):
        self.driver, self.graph = driver, ctypes.c_void_p(graph)

    def _call(self, name: str, *args: Any) -> None:
        rc = getattr(self.driver, name)(*args)
        if rc:
            raise RuntimeError(f"CUDA error {rc} in {name}")

    def _list(self, name: str, of: int | None = None) -> list[int]:
        n = ctypes.c_size_t()
        which = self.graph if of is None else ctypes.c_void_p(of)
        self._call(name, which, None, ctypes.byref(n))
        found = (ctypes.c_void_p * n.value)()
        if n.value:
            self._call(name, which, found, ctypes.byref(n))
        return [int(x) for x in found]

    def _neighbours(self, name: str, node: int) -> list[int] | None:
        """None where an edge says more than what comes first."""
        n = ctypes.c_size_t()
        self._call(name, ctypes.c_void_p(node), None, None, ctypes.byref(n))
        found, edges = (ctypes.c_void_p * n.value)(), (ctypes.c_uint64 * n.value)()
        if n.value:
            self._call(name, ctypes.c_void_p(node), found, edges, ctypes.byref(n))
        return None if any(edges) else [int(x) for x in found]

    def memsets(self) -> list[int]:
        kind = ctypes.c_int()
        found = []
        for node in self._list("cuGraphGetNodes"):
            self._call("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
            if kind.value == MEMSET:
                found.append(node)
        return found

    def memset(self, node: int) -> tuple[int, int, int]:
        """Where, with what, and how many bytes."""
        p = _Memset()
        self._call("cuGraphMemsetNodeGetParams", ctypes.c_void_p(node), ctypes.byref(p))
        return p.address, p.value, p.element * p.width if p.height <= 1 else p.pitch * p.height

    def before(self, node: int) -> list[int] | None:
        return self._neighbours("cuGraphNodeGetDependencies_v2", node)

    def behind(self, node: int) -> list[int] | None:
        return self._neighbours("cuGraphNodeGetDependentNodes_v2", node)

    def roots(self) -> list[int]:
        return self._list("cuGraphGetRootNodes")

    def connect(self, a: int, b: int) -> None:
        self._call(
            "cuGraphAddDependencies_v2",
            self.graph,
            (ctypes.c_void_p * 1)(a),
            (ctypes.c_void_p * 1)(b),
            None,
            ctypes.c_size_t(1),
        )

    def destroy(self, node: int) -> None:
        self._call("cuGraphDestroyNode", ctypes.c_void_p(node))

    def clear(self, address: int, n: int) -> int:
        node, context = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(context))
        self._call(
            "cuGraphAddMemsetNode",
            ctypes.byref(node),
            self.graph,
            None,
            ctypes.c_size_t(0),
            ctypes.byref(_Memset(address, 0, 0, 1, n, 1)),
            context,
        )
        assert node.value is not None
        return node.value


@functools.cache
def _driver() -> Any:
    """CUDA's driver, where it and torch can change what was recorded; else None."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    # of CUDA 12.3 and later
    names = ("cuGraphNodeGetDependencies_v2", "cuGraphNodeGetDependentNodes_v2", "cuGraphAddDependencies_v2")
    return (
        driver
        if all(hasattr(driver, name) for name in names)
        and hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph")
        and hasattr(native, "gemm_workspaces")
        else None
    )
