"""out= arguments of any dtype and shape: what eager refuses is refused, what it resizes is resized, what it computes in
the output's dtype is so.
"""

import warnings
import pytest
import torch
import tcompile

X = torch.tensor([[4.0, 1.0, -2.0], [1.0, 3.0, 0.5], [-2.0, 0.5, 5.0]])
I = torch.tensor([[0, 1, 2], [2, 1, 0], [1, 1, 1]])

# name -> (the call, how many results it has)
CALLS = {
    "add": lambda out: torch.add(X, 1, out=out),
    "abs": lambda out: torch.abs(X, out=out),
    "round": lambda out: torch.round(X, out=out),
    "sigmoid": lambda out: torch.sigmoid(X, out=out),
    "gelu": lambda out: torch._C._nn.gelu(X, out=out),
    "eq": lambda out: torch.eq(X, X.T, out=out),
    "isposinf": lambda out: torch.isposinf(X, out=out),
    "sum": lambda out: torch.sum(X, 0, out=out),
    "any": lambda out: torch.any(X, 0, out=out),
    "mm": lambda out: torch.mm(X, X, out=out),
    "bmm": lambda out: torch.bmm(X[None], X[None], out=out),
    "cumsum": lambda out: torch.cumsum(X, 0, out=out),
    "nanmean": lambda out: torch.nanmean(X, 0, out=out),
    "scatter_reduce": lambda out: torch.scatter_reduce(X, 0, I, X, "sum", out=out),
    "gather": lambda out: torch.gather(X, 0, I, out=out),
    "cat": lambda out: torch.cat([X, X], out=out),
    "rank": lambda out: torch.linalg.matrix_rank(X[None], out=out),
    "erfcx": lambda out: torch.special.erfcx(X, out=out),
    "arange": lambda out: torch.arange(0, 4, out=out),
    "linspace": lambda out: torch.linspace(0, 1, 4, out=out),
    "full": lambda out: torch.full((2, 2), 3.0, out=out),
    "eye": lambda out: torch.eye(2, out=out),
    "frexp": lambda out: torch.frexp(X, out=out),
    "sort": lambda out: torch.sort(X, out=out),
    "max": lambda out: torch.max(X, 0, out=out),
    "topk": lambda out: torch.topk(X, 2, out=out),
    "kthvalue": lambda out: torch.kthvalue(X, 2, out=out),
    "eigh": lambda out: torch.linalg.eigh(X, out=out),
    "aminmax": lambda out: torch.aminmax(X, dim=0, out=out),
    "slogdet": lambda out: torch.linalg.slogdet(X[None], out=out),
}
SEVERAL = ("frexp", "sort", "max", "topk", "kthvalue", "eigh", "aminmax", "slogdet")
OUTPUTS = {
    "right": lambda r: torch.zeros(r.shape, dtype=r.dtype),
    "empty": lambda r: torch.zeros(0, dtype=r.dtype),
    "larger": lambda r: torch.zeros((*r.shape, 2), dtype=r.dtype),
    "float64": lambda r: torch.zeros(r.shape, dtype=torch.float64),
    "int64": lambda r: torch.zeros(r.shape, dtype=torch.int64),
    "complex64": lambda r: torch.zeros(r.shape, dtype=torch.complex64),
    "float16": lambda r: torch.zeros(r.shape, dtype=torch.float16),
}


def outcome(f, outputs):
    """What a call does: the outputs' metadata and values afterwards, whether it warned; or its error."""
    out = tuple(outputs) if len(outputs) > 1 else outputs[0]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = f(out)
        except Exception as e:
            return type(e), str(e)
    results = result if isinstance(result, tuple) else (result,)
    return [
        (t.dtype, t.shape, t.stride(), [x if isinstance(x, complex) else round(x, 3) for x in t.flatten().tolist()])
        for t in (*outputs, *results)
    ], any("resized" in str(w.message) for w in warned)


def results_of(name):
    fresh = tuple(torch.empty(0, dtype=d) for d in DTYPES[name])
    CALLS[name](fresh if len(fresh) > 1 else fresh[0])
    return fresh


_INT = torch.int64
DTYPES = {
    **{name: (torch.float32,) for name in CALLS},
    **dict.fromkeys(("eq", "isposinf", "any"), (torch.bool,)),
    "rank": (_INT,),
    "frexp": (torch.float32, torch.int32),
    **dict.fromkeys(("sort", "max", "topk", "kthvalue"), (torch.float32, _INT)),
    **dict.fromkeys(("eigh", "aminmax", "slogdet"), (torch.float32,) * 2),
}


@pytest.mark.parametrize("name", CALLS)
def test_outputs_that_are_given(name):
    call = CALLS[name]
    for make in OUTPUTS.values():
        wanted = outcome(call, [make(r) for r in results_of(name)])
        assert outcome(tcompile.compile(call, backend="aot_eager"), [make(r) for r in results_of(name)]) == wanted


@pytest.mark.parametrize("name", SEVERAL)
def test_outputs_that_the_function_makes(name):
    for dtypes in (DTYPES[name], (torch.float32,) * 2):

        def made(_, dtypes=dtypes):
            fresh = tuple(torch.empty(0, dtype=d) for d in dtypes)
            CALLS[name](fresh)
            return fresh

        ignored = [torch.empty(0)]
        assert outcome(tcompile.compile(made, backend="aot_eager"), ignored) == outcome(made, ignored)


def test_by_kernels_of_ours():
    def f(x):
        a, b = torch.empty(0), torch.empty(0, dtype=torch.int32)
        torch.frexp(x, out=(a, b))
        return a * 2, b

    for got, want in zip(tcompile.compile(f)(X), f(X), strict=True):
        assert torch.equal(got, want)
    with pytest.raises(RuntimeError, match="to have dtype float, but got double"):
        tcompile.compile(lambda x: torch.mm(x, x, out=torch.empty(3, 3, dtype=torch.float64)))(X)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.add(x[1:], 1, out=x[:-1]),
        lambda x: torch.mul(x, 2, out=x),
        lambda x: torch.exp(x.T, out=x),
        lambda x: torch.sum(x, 0, out=x[0]),
        lambda x: torch.add(x, x, out=x[0].expand(3, 3)),
        lambda x: torch.cumsum(x, 0, out=x),
    ],
)
def test_outputs_over_memory_of_operands(call):
    def run(f):
        x = X.clone()
        try:
            f(x)
        except Exception as e:
            return type(e), str(e)
        return x.tolist()

    assert run(tcompile.compile(call, backend="aot_eager")) == run(call)
