"""What tcompile.disable keeps out of compiled code: a function with all that it calls, or its frame alone."""

import pytest
import torch
import tcompile

X = torch.randn(3, 4)


def counted(fn, **kwargs):
    made = []

    def backend(gm, inputs):
        made.append(gm)
        return gm.forward

    return tcompile.compile(fn, backend=backend, **kwargs), made


def inner(x):
    return x.sin()


def plain(x):
    return inner(x) + 1


@pytest.mark.parametrize("mark", [tcompile.disable, torch.compiler.disable])
@pytest.mark.parametrize("recursive, graphs", [(True, 2), (False, 3)])
def test_a_frame_alone_or_all_that_it_calls(mark, recursive, graphs):
    def middle(x):
        assert not tcompile.is_compiling() and not torch.compiler.is_compiling()
        return inner(x) + 1

    left_out = mark(middle, recursive=recursive)
    f, made = counted(lambda x: left_out(x * 2) * 2)
    for _ in range(2):
        torch.testing.assert_close(f(X), plain(X * 2) * 2)
    assert len(made) == graphs


@pytest.mark.parametrize("mark", [tcompile.disable, torch.compiler.disable])
@pytest.mark.parametrize("recursive", [True, False])
def test_a_break_says_the_reason(mark, recursive):
    @mark(recursive=recursive, reason="it asks the sensor")
    def left_out(x):
        return x + 1

    with pytest.raises(tcompile.FullGraphError, match="left_out is marked to stay uncompiled: it asks the sensor"):
        counted(lambda x: left_out(x * 2), fullgraph=True)[0](X)
    f, made = counted(lambda x: left_out(x * 2))
    torch.testing.assert_close(f(X), X * 2 + 1)
    assert len(made) == 1


def test_a_block():
    f, made = counted(inner)
    with tcompile.disable():
        torch.testing.assert_close(f(X), X.sin())
    assert not made


def test_what_it_takes():
    with pytest.raises(TypeError, match="a function or nothing, got int"):
        tcompile.disable(3)
    with pytest.raises(TypeError, match="recursive=False.* takes a Python function, got Linear"):
        tcompile.disable(torch.nn.Linear(2, 2), recursive=False)
