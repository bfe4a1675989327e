"""Flags and global state that a program reads are relied on: each change between calls is noticed."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from .changing import eq, run, x


B = torch.backends
FLAGS = [
    ("flash", B.cuda.enable_flash_sdp, [True, False], B.cuda.flash_sdp_enabled),
    ("math", B.cuda.enable_math_sdp, [True, False], B.cuda.math_sdp_enabled),
    ("mem", B.cuda.enable_mem_efficient_sdp, [True, False], B.cuda.mem_efficient_sdp_enabled),
    ("cudnnsdp", B.cuda.enable_cudnn_sdp, [True, False], B.cuda.cudnn_sdp_enabled),
    ("cudnn.enabled", lambda v: setattr(B.cudnn, "enabled", v), [True, False], lambda: B.cudnn.enabled),
    ("cudnn.benchmark", lambda v: setattr(B.cudnn, "benchmark", v), [True, False], lambda: B.cudnn.benchmark),
    (
        "cudnn.deterministic",
        lambda v: setattr(B.cudnn, "deterministic", v),
        [True, False],
        lambda: B.cudnn.deterministic,
    ),
    ("cudnn.tf32", lambda v: setattr(B.cudnn, "allow_tf32", v), [True, False], lambda: B.cudnn.allow_tf32),
    ("mm.tf32", lambda v: setattr(B.cuda.matmul, "allow_tf32", v), [True, False], lambda: B.cuda.matmul.allow_tf32),
    ("mkldnn", lambda v: torch._C._set_mkldnn_enabled(v), [True, False], lambda: B.mkldnn.enabled),
    ("det", torch.use_deterministic_algorithms, [True, False], torch.are_deterministic_algorithms_enabled),
    (
        "det_warn",
        lambda v: (
            torch.use_deterministic_algorithms(True, warn_only=v) if v else torch.use_deterministic_algorithms(False)
        ),
        [True, False],
        torch.is_deterministic_algorithms_warn_only_enabled,
    ),
    ("debugmode", torch.set_deterministic_debug_mode, [0, 1, 2], torch.get_deterministic_debug_mode),
    (
        "prec",
        lambda v: torch.set_float32_matmul_precision(["highest", "high"][int(v)]),
        [0, 1],
        lambda: torch.get_float32_matmul_precision() == "high",
    ),
    ("threads", torch.set_num_threads, [1, 2], torch.get_num_threads),
    (
        "defdtype",
        lambda v: torch.set_default_dtype(torch.float64 if v else torch.float32),
        [0, 1],
        lambda: torch.get_default_dtype() == torch.float64,
    ),
    ("warnalways", torch.set_warn_always, [True, False], torch.is_warn_always_enabled),
    ("opt_einsum", lambda v: setattr(B.opt_einsum, "enabled", v), [True, False], lambda: B.opt_einsum.enabled),
    (
        "fillun",
        lambda v: setattr(torch.utils.deterministic, "fill_uninitialized_memory", v),
        [True, False],
        lambda: torch.utils.deterministic.fill_uninitialized_memory,
    ),
    ("grad", torch._C._set_grad_enabled, [True, False], torch.is_grad_enabled),
    ("multith", torch._C._set_multithreading_enabled, [True, False], torch._C._is_multithreading_enabled),
    ("viewreplay", torch._C._set_view_replay_enabled, [True, False], torch._C._is_view_replay_enabled),
    ("nnpack", torch._C._set_nnpack_enabled, [True, False], torch._C._get_nnpack_enabled),
    (
        "overwrite",
        torch.__future__.set_overwrite_module_params_on_conversion,
        [True, False],
        torch.__future__.get_overwrite_module_params_on_conversion,
    ),
]


@pytest.mark.parametrize(("name", "setter", "values", "getter"), FLAGS, ids=[f[0] for f in FLAGS])
def test_flag(name, setter, values, getter):
    old = getter()

    def fn(x):
        return x + float(getter())

    c = run(fn)
    with torch.backends.__allow_nonbracketed_mutation():
        # torch's own test package, if it was imported, forbids plain assignment
        try:
            for v in (*values, values[0]):
                setter(v)
                eq(fn(x), c(x), name)
        finally:
            setter(old)


def test_autocast_cache():

    def fn(x):
        return x + float(torch.is_autocast_cache_enabled()) + float(torch.is_autocast_enabled("cpu"))

    c = run(fn)
    old = torch.is_autocast_cache_enabled()
    for v in (True, False, True):
        torch.set_autocast_cache_enabled(v)
        eq(fn(x), c(x))
    torch.set_autocast_cache_enabled(old)


def test_get_autocast_dtype_off():

    def fn(x):
        return x.to(torch.get_autocast_dtype("cpu"))

    c = run(fn)
    old = torch.get_autocast_dtype("cpu")
    for d in (torch.bfloat16, torch.float16, torch.bfloat16):
        torch.set_autocast_dtype("cpu", d)
        eq(fn(x), c(x))
    torch.set_autocast_dtype("cpu", old)


def test_env_var():
    import os

    def fn(x):
        return x + 1 if os.environ.get("TCX") == "1" else x - 1

    c = run(fn)
    eq(fn(x), c(x))
    os.environ["TCX"] = "1"
    eq(fn(x), c(x))
    del os.environ["TCX"]
    eq(fn(x), c(x))


def test_recursion_limit():

    def fn(x):
        return x + sys.getrecursionlimit()

    c = run(fn)
    eq(fn(x), c(x))
    sys.setrecursionlimit(sys.getrecursionlimit() + 1)
    eq(fn(x), c(x))


def test_sys_modules():

    def fn(x):
        return x + 1 if "my_mod_q" in sys.modules else x - 1

    c = run(fn)
    eq(fn(x), c(x))
    sys.modules["my_mod_q"] = types.ModuleType("my_mod_q")
    eq(fn(x), c(x))
    del sys.modules["my_mod_q"]


def test_dtype_default_factory():

    def fn(x):
        return (torch.zeros(3) + 1.5, torch.tensor(1.5), torch.arange(3) * 1.0)

    c = run(fn)
    eq(fn(x), c(x))
    torch.set_default_dtype(torch.float64)
    try:
        eq(fn(x), c(x))
    finally:
        torch.set_default_dtype(torch.float32)


def test_vmap_call():

    def fn(x):
        return x.sum() + x

    c = run(fn)
    eq(fn(x), c(x))
    eq(torch.vmap(fn)(x), torch.vmap(c)(x))
    eq(torch.func.grad(lambda x: fn(x).sum())(x), torch.func.grad(lambda x: c(x).sum())(x))
