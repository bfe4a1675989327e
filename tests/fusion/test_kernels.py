"""What becomes one kernel, what does not and why, and how kernels look."""

import time

import pytest
import torch
import torch.nn.functional as F

from tcompile.compiler.fusion.schedule import Launch
from tcompile.compiler.fusion.verify_schedule import verify_kernel

from ..lowering.helper import aten_graph, check, compile_fn, externs, kernels, lower, schedule


def softmax_by_hand(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def test_softmax_reads_its_input_once_and_computes_exp_once():
    s = check(softmax_by_hand, torch.randn(6, 8), n_kernels=1)
    (k,) = kernels(s)
    assert k.key().splitlines() == [
        "kernel kernel(in0: float32[6, 8]) -> out0: float32[6, 8]",
        "  for i0 in 6, parallel:",
        "    local tmp0: float32[8]",
        "    for r0 in 8:",
        "      acc0 = max(in0[8*i0 + r0]) as float32",
        "    for r0 in 8:",
        "      v0 = exp(in0[8*i0 + r0] - acc0)",
        "      acc1 = sum(v0) as float32",
        "      tmp0[r0] = v0",
        "    for r0 in 8:",
        "      out0[8*i0 + r0] = tmp0[r0] / acc1",
    ]
    assert k.fused_because


def test_long_rows_are_computed_again_instead_of_kept():
    s = compile_fn(softmax_by_hand, torch.randn(2, 40000))
    assert all(not k.locals for k in kernels(s))


def test_pointwise_chains():
    s = check(lambda a, b, c, d: torch.relu((a + b) * c - d) * 2 + 1, *torch.randn(4, 3, 5), n_kernels=1)
    (k,) = kernels(s)
    assert len(k.outer) == 1 and k.outer[0].size == 15  # one axis
    assert k.origins == ["add", "mul", "sub", "relu", "mul_1", "add_1"]


def test_a_thousand_additions_are_one_kernel_in_linear_time():
    def f(x):
        for _ in range(1000):
            x = x + 1
        return x

    g = aten_graph(f, torch.randn(10))
    t = time.process_time()
    s = schedule(lower(g, {}), {})
    assert time.process_time() - t < 2  # 0.05 s on an idle machine
    (k,) = kernels(s)
    assert str(k).count("+") > 900


def test_intermediate_that_is_returned_is_stored_by_the_same_kernel():
    s = check(lambda x: (x + 1, (x + 1).sin() * 2), torch.randn(5), n_kernels=1)
    assert len(kernels(s)[0].outputs) == 2


def test_shared_reads_fuse_horizontally():
    check(lambda x, y: (x + y, x * y, x.sin()), torch.randn(5, 4), torch.randn(5, 4), n_kernels=1)
    check(lambda x: (x.sum(1), x.amax(1), x.mean(1)), torch.randn(40, 4), n_kernels=1)


def test_prologue_and_epilogue_of_reductions():
    x = torch.randn(40, 8)
    check(lambda x: ((x * 2).relu().sum(1) + 1).sqrt(), x, n_kernels=1)
    check(lambda x: (x * 2).sum(0) * 3, x, n_kernels=1)
    check(lambda x: x / x.norm(dim=1, keepdim=True).clamp_min(1e-6), x, n_kernels=1)
    check(lambda x: torch.log_softmax(x, 1) * (x > 0), x, n_kernels=1)
    check(lambda x: torch.softmax(x, 0), x, n_kernels=1)
    check(lambda x: x.mean(), x, n_kernels=1)


def test_reshapes_between_operators_do_not_split():
    x, w = torch.randn(4, 6, 8), torch.randn(8)
    s = check(lambda x, w: F.layer_norm((x.view(24, 8) + 1).view(4, 6, 8), (8,), w), x, w, n_kernels=1)
    assert kernels(s)[0].outer[0].size == 24
    check(lambda x, w: (x.view(24, 8) + w).sum(1).view(4, 6) * 2, x, w, n_kernels=1)
    check(lambda x, w: (x.sin().view(2, 2, 48) * 2).view(192).cos(), x, w, n_kernels=1)


def test_epilogue_after_a_matrix_product():
    s = check(
        lambda x, w, b: F.gelu(x @ w + b),
        torch.randn(6, 5),
        torch.randn(5, 4),
        torch.randn(4),
        n_kernels=1,
        n_externs=1,
    )
    assert any("matrix product" in why for _, _, why in s.unfused)


def test_mlp():
    def f(x, w1, b1, w2, b2):
        return F.linear(F.relu(F.linear(x, w1, b1)), w2, b2)

    s = check(
        f,
        torch.randn(6, 5),
        torch.randn(7, 5),
        torch.randn(7),
        torch.randn(3, 7),
        torch.randn(3),
        n_kernels=1,
        n_externs=2,
    )
    assert all(x.out_variant is not None for x in s.steps if hasattr(x, "out_variant"))


def test_attention_by_hand():
    def f(q, k, v):
        s = (q @ k.transpose(-2, -1)) / (q.shape[-1] ** 0.5)
        return torch.softmax(s.float(), -1).to(q.dtype) @ v

    check(f, *torch.randn(3, 2, 3, 6, 4), n_kernels=1, n_externs=2)


def test_refusals_have_reasons():
    x = torch.randn(40, 40)
    s = check(lambda x: (x.sin().exp() + x.sin().exp().t()).cos(), x)
    assert all(a and b and why for a, b, why in s.unfused)
    s = check(lambda x: (x.sum(1).sin() + x.sum(0)).cos(), x)
    assert any("different axes" in why or "differ" in why for _, _, why in s.unfused), s.unfused


@pytest.mark.parametrize("opts", [{"disable_fusion": True}, {"max_fusion_size": 2}, {"epilogue_fusion": False}])
def test_options(opts):
    def f(x, w):
        return torch.softmax(torch.relu(x @ w + 1) * 2, -1)

    x, w = torch.randn(6, 5), torch.randn(5, 4)
    free = len(kernels(check(f, x, w)))
    less = len(kernels(check(f, x, w, **opts)))
    assert less > free


def test_repeated_layers_give_equal_kernels():
    def f(x, w):
        for _ in range(3):
            x = torch.softmax(x @ w, -1) * 2
        return x

    s = compile_fn(f, torch.randn(6, 5), torch.randn(5, 5))
    keys = [k.key() for k in kernels(s)]
    assert len(keys) == 3 and len(set(keys)) == 1
    launches = [x for x in s.steps if isinstance(x, Launch)]
    assert len({id(b) for x in launches for b in x.outputs}) == 3


def test_a_cheap_conversion_is_repeated_and_not_stored():
    def f(x, a, b):
        h = x.float()
        return a @ h.bfloat16().float().t() if False else (h * 2).sum(1), (h.t() + 1)

    s = check(f, torch.randn(40, 30).bfloat16(), torch.randn(2), torch.randn(2))
    assert all(b.dtype == torch.bfloat16 for k in kernels(s) for b in k.inputs)


def test_permuted_intermediate_moves_into_its_reader():
    s = check(lambda x: (x.exp() * 2 + 1).t().contiguous() * 3, torch.randn(6, 5), n_kernels=1)
    assert not externs(s)


def test_expensive_broadcast_producer_is_not_repeated():
    s = check(lambda w, x: torch.exp(torch.sin(w)) * x, torch.randn(8), torch.randn(100, 8), n_kernels=2)
    assert [k.origins for k in kernels(s)][0] == ["sin", "exp"]


def test_verifier_finds_broken_kernels():
    (k,) = kernels(compile_fn(softmax_by_hand, torch.randn(6, 8)))
    k.stages.reverse()
    with pytest.raises(AssertionError, match="no earlier stage"):
        verify_kernel(k)


def test_zero_sizes():
    for shape in ((0, 4), (4, 0), (0,)):
        check(lambda x: torch.relu(x * 2), torch.randn(shape))
        check(lambda x: (x * 2).sum(-1) + 1, torch.randn(shape))


def test_work_that_waits_for_a_library_call_shares_its_reader_s_kernel():
    def f(x, a, b, c):
        return (F.silu(x @ a) * (x @ b)) @ c

    check(f, torch.randn(6, 5), torch.randn(5, 4), torch.randn(5, 4), torch.randn(4, 3), n_kernels=1, n_externs=3)


def test_rotary_embedding_is_one_kernel():
    def f(q, cos, sin):
        q = q.view(2, 6, 4, 8).transpose(1, 2)
        half = torch.cat([-q[..., 4:], q[..., :4]], -1)
        return q * cos + half * sin

    s = check(f, torch.randn(2, 6, 32), torch.randn(6, 8), torch.randn(6, 8), n_kernels=1)
    assert "//" not in str(kernels(s)[0])


def test_channel_statistics_move_into_the_kernel_that_applies_them():
    def f(x, w, b, mean, var):
        scale = w * torch.rsqrt(var + 1e-5)
        shift = b - mean * scale
        return torch.relu(x * scale[:, None, None] + shift[:, None, None])

    p = torch.rand(4, 6) + 0.5
    check(f, torch.randn(2, 6, 16, 16), *p, n_kernels=1)


def test_log_softmax_and_the_target_s_element_are_one_kernel():
    s = check(lambda x, t: F.cross_entropy(x, t, reduction="none"), torch.randn(40, 9), torch.randint(0, 9, (40,)))
    assert max(len(k.stages) for k in kernels(s)) >= 3

    def f(x, t):
        return torch.log_softmax(x, 1).gather(1, t[:, None])[:, 0].neg()

    (k,) = kernels(check(f, torch.randn(40, 9), torch.randint(0, 9, (40,)), n_kernels=1))
    assert [b.shape for b in k.outputs] == [(40,)]  # the matrix of logarithms is never stored


def test_the_place_of_an_element_of_a_row_survives_the_row_s_parting():
    """A later nest parts the row's axis in two, and the element's place would be known by divisions only: an internal
    error.
    """

    def f(x):
        y = x.sin()
        return y.gather(0, y.argmax(0, keepdim=True)), y.view(2, 2).sum()

    check(f, torch.randn(4), n_kernels=2)


def test_equal_nests_are_computed_once():
    def f(x, w):
        a, b = (x > 0).float() * 2, (x > 0).float() * 2
        return a @ w + b @ w

    s = check(f, torch.randn(6, 5), torch.randn(5, 4))
    assert len(kernels(s)) == 2


def test_same_elements_in_another_order_do_not_share():
    s = check(lambda x: (x.sin(), x.t().contiguous().cos()), torch.randn(200, 300), n_kernels=2)
    assert all("//" not in str(k) for k in kernels(s))


def test_kernels_have_limits():
    def softmaxes(x):
        for _ in range(20):
            x = torch.softmax(x, -1) * 2
        return x

    s = check(softmaxes, torch.randn(40, 5))
    assert 4 <= len(kernels(s)) <= 10 and all(len(k.stages) <= 8 for k in kernels(s))
    s = check(lambda x: tuple(x + i for i in range(100)), torch.randn(5))
    assert len(kernels(s)) == 2
    s = check(lambda *xs: sum(xs[1:], xs[0]), *torch.randn(100, 5))
    assert all(len(k.inputs) <= 66 for k in kernels(s))


def test_independent_chains_that_meet_share_a_kernel():
    a, b, c = torch.randn(3, 6, 50)
    check(lambda a, b: torch.sin(a) + torch.cos(b), a, b, n_kernels=1)
    check(
        lambda a, b, c: torch.sin(a) + torch.cos(b) * torch.tanh(c).exp(),
        a.repeat(60, 1),
        b.repeat(60, 1),
        c.repeat(60, 1),
        n_kernels=1,
    )
    check(lambda a, b: torch.sin(a).sum(1) + torch.cos(b).sum(1), a.repeat(60, 1), b.repeat(60, 1), n_kernels=1)
    apart = check(lambda a, b: (torch.sin(a), torch.cos(b)), a.repeat(60, 1), b.repeat(60, 1))
    assert len(kernels(apart)) == 2  # nothing reads both: each goes through its own memory


def test_independent_chains_that_never_meet_are_looked_at_in_linear_time():
    def f(x, y):
        for k in range(100):
            x = x.sin() if k % 2 else x.exp()
            y = (y.cos() + 1).sum(1, keepdim=True) * y
        return x, y

    g = aten_graph(f, torch.randn(300, 100), torch.randn(300, 100))
    lowered = lower(g, {})
    t = time.process_time()
    schedule(lowered, {})
    assert time.process_time() - t < 2  # 0.1 s on an idle machine


def norm_gradients(x, g, w):
    """Of a group norm of one channel a group: the input's, row by row, and sums over batch and time."""
    v = x - x.mean(-1, keepdim=True)
    a = g * torch.tanh(v * w[:, None])
    return a - a.mean(-1, keepdim=True) * v, (a * v).sum((0, 2)), a.sum((0, 2))


def test_sums_over_rows_and_what_is_in_them_are_made_of_the_rows_sums():
    x, g, w = torch.randn(3, 4, 50), torch.randn(3, 4, 50), torch.randn(4)
    s = check(norm_gradients, x, g, w, n_kernels=2)
    rows, whole = kernels(s)
    assert [tuple(b.shape) for b in rows.outputs] == [(3, 4, 50), (3, 4), (3, 4)]
    assert [tuple(b.shape) for b in whole.inputs] == [(3, 4), (3, 4)]
    check(norm_gradients, *(t.bfloat16() for t in (x, g, w)), n_kernels=2, rtol=0.05, atol=0.5)
    # the sums would be an eighth of what they are made of
    short = compile_fn(norm_gradients, x[..., :8], g[..., :8], w)
    assert not any(tuple(b.shape) == (3, 4) for k in kernels(short) for b in k.outputs)
