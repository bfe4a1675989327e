"""Conjugate views of the program's, and those that formulas of gradients take: both are computed in the graph."""

import pytest
import torch

import tcompile

SEED = torch.Generator().manual_seed(0)
X = torch.randn(2, 6, 3, 8, generator=SEED)
TURNS = torch.polar(torch.ones(6, 4), torch.randn(6, 4, generator=SEED))


def rotary(x):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * TURNS[:, None, :]).flatten(3).type_as(x)


PROGRAMS = {
    "rotary": rotary,
    "spectrum": lambda x: torch.fft.ifft(torch.fft.fft(x) * 2j).imag,
    "products": lambda x: torch.view_as_real(
        torch.view_as_complex(x.reshape(36, 4, 2) + 1) @ torch.view_as_complex((x * 2).reshape(4, 36, 2)).exp()
    ),
    "quotient": lambda x: (torch.complex(x, x + 1) / torch.complex(x * 2, x - 3)).abs(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name):
    program = PROGRAMS[name]
    ours, theirs = (X.clone().requires_grad_() for _ in range(2))
    with tcompile.record() as record:
        got = tcompile.compile(program, fullgraph=True)(ours)
        got.square().sum().backward()
    want = program(theirs)
    want.square().sum().backward()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)
    report = record.report()
    assert len(report.graphs) == 2 and not [f for f in report.fallbacks if f.what.startswith("gradients")]


Z = torch.randn(3, 4, dtype=torch.complex64, generator=SEED)


def seen(t):
    return t.dtype, t.shape, t.stride(), t.is_conj(), t.is_neg(), t.requires_grad, t._is_view(), t.is_leaf


def state_space(z):
    kernel = torch.einsum("hn,hnl->hl", z, torch.exp(z[..., None] * 0.1 * torch.arange(8)))
    return torch.fft.irfft(torch.fft.rfft(2 * torch.cat([kernel, kernel.conj()]).real, n=16) * z.sum().conj(), n=16)


def through_views(z):
    a = z * 1
    c = a.conj()
    c[0] = 3j
    a[1] = 1j
    return c * 1, a * 1


def without_gradient(z):
    with torch.no_grad():
        a = z.conj()
        return (a * 2).conj(), a * 3


VIEWS = {
    "conj": lambda z: (z.conj(), z * z.conj()),
    "adjoint": lambda z: (z @ z.mH, z.adjoint(), z.conj().T),
    "imag": lambda z: (z.conj().imag * 2, (z * 2).conj().imag),
    "resolved": lambda z: (z.conj().resolve_conj(), torch.view_as_real(z.conj().conj()) + 1),
    "detached": lambda z: (z.conj().detach(), z.conj().imag.detach() * 2),
    "parts": lambda z: [t.conj() for t in (z * 2).unbind()],
    "asked": lambda z: (z.conj() if z.conj().is_conj() and z.conj().imag.is_neg() else z * 5,),
    "mapped": lambda z: (torch.vmap(lambda a: a.conj())(z), torch.vmap(lambda a: a * 2)(z.conj())),
    "state space": lambda z: (state_space(z),),
    "through views": through_views,
    "without gradient": without_gradient,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_conjugate_views(name, grad):
    ours, theirs = ((Z.clone().requires_grad_(grad) * 1) for _ in range(2))
    with tcompile.record() as record:
        got = tcompile.compile(VIEWS[name], fullgraph=True)(ours)
    want = VIEWS[name](theirs)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)
        assert seen(g) == seen(w)
    assert len(record.report().graphs) == 1
    given = [
        torch.autograd.grad([o for o in out if o.requires_grad], z, [o.detach() + 1 for o in out if o.requires_grad])
        if any(o.requires_grad for o in out)
        else ()
        for out, z in ((got, ours), (want, theirs))
    ]
    torch.testing.assert_close(*given, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("view", [torch.conj, lambda z: z.conj().imag, lambda z: z.imag.conj(), lambda z: z.mH.imag])
@pytest.mark.parametrize("write", [False, True])
def test_conjugate_inputs(view, write):
    def program(z):
        if write:
            z.add_(2).mul_(3)
        return z * 2, z.T, z

    ours, theirs = Z.clone(), Z.clone()
    given, wanted = view(ours), view(theirs)
    got, want = tcompile.compile(program, fullgraph=True)(given), program(wanted)
    torch.testing.assert_close(got, want)
    assert [seen(t) for t in got] == [seen(t) for t in want] and got[2] is given
    torch.testing.assert_close(ours, theirs)
    got[1].fill_(1)
    assert given.eq(1).all()


def test_gradients_of_conjugate_inputs():
    ours, theirs = (Z.clone().requires_grad_() for _ in range(2))
    for z, run in ((ours, tcompile.compile(lambda c: c * c.imag, fullgraph=True)), (theirs, lambda c: c * c.imag)):
        run((z * 2).conj()).abs().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_writes_to_conjugate_views():
    def program(z):
        z.conj().mul_(2j)
        z.imag.add_(2)
        z.conj().imag[0] = 7
        return z.conj()

    ours, theirs = Z.clone(), Z.clone()
    got, want = tcompile.compile(program, fullgraph=True)(ours), program(theirs)
    torch.testing.assert_close((got, ours), (want, theirs))
    got.zero_()
    assert not ours.any()


def test_a_view_of_numbers_of_an_unresolved_conjugate_raises():
    with pytest.raises(RuntimeError, match="unresolved conjugated"):
        tcompile.compile(lambda z: torch.view_as_real((z + 1).conj()))(Z)
    with pytest.raises(RuntimeError, match="conjugate view"):
        tcompile.compile(lambda z: (z + 1).conj().view(torch.float32))(Z)


def test_a_break_while_a_conjugate_lives():
    def program(z):
        c = z.conj()
        d = c.imag
        print(end="")
        open(__file__).close()
        return c * 2, d + 1, c

    ours, theirs = (Z.clone().requires_grad_() for _ in range(2))
    got, want = tcompile.compile(program)(ours), program(theirs)
    torch.testing.assert_close(got, want)
    for out in (got, want):
        (out[0].abs().sum() + out[1].sum()).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_file_holds_no_conjugate_view():
    with pytest.raises(tcompile.ExportError, match="resolve_conj"):
        tcompile.export(lambda z: (z * 2).conj(), (Z,))
