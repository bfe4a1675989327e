"""What inductor writes for a graph, read into this compiler's own facts."""

from __future__ import annotations

from tcompile.compiler import events
from tcompile.compiler.backends import registered

WRITTEN = """
cpp_fused_relu_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
extern "C"  void  kernel(const float* in_ptr0, float* out_ptr0) { }
''')

# kernel path: /tmp/x.py
# Topologically Sorted Source Nodes: [h, softmax], Original ATen: [aten.mul, aten._softmax]
# Source node to ATen node mapping:
#   h => mul
triton_per_fused__softmax_mul_1 = async_compile.triton('triton_per_fused__softmax_mul_1', '''
@triton.jit
def triton_per_fused__softmax_mul_1(in_ptr0): pass
''', device_str='cuda')

class Runner:
    def call(self, args):
        extern_kernels.mm(arg0_1, arg1_1, out=buf0)
        buf1 = torch.ops.aten.sort.stable(buf0, stable=False)
        cpp_fused_relu_0(buf0, buf2)
"""


def test_kernels_and_library_calls_of_inductor() -> None:
    heard: list[events.Event] = []
    with events.listen(heard.append), registered._inductor_code():
        from torch._inductor.graph import GraphLowering

        GraphLowering.save_output_code(WRITTEN)
    assert GraphLowering.save_output_code is None
    first, second = [e for e in heard if e.kind == "kernel"]
    assert (first.name, first.language, first.origins) == ("cpp_fused_relu_0", "c++", []) and first.source.startswith(
        'extern "C"'
    )
    assert (second.name, second.language, second.origins) == (
        "triton_per_fused__softmax_mul_1",
        "triton",
        ["h", "softmax"],
    )
    assert "@triton.jit" in second.source and "async_compile" not in second.source
    assert [[op for op, *_ in e.extern] for e in heard if e.kind == "schedule"] == [["mm", "aten.sort.stable"]]
