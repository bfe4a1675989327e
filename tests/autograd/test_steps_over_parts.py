"""Steps over DTensors of compiled modules, in one process of a group that exchanges nothing: on the parts where these
are parted alike, by torch's own step elsewhere."""

import pytest
import torch
import torch.distributed as dist

from tcompile.compiler.frontend import sharded_steps

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")


@pytest.fixture
def mesh():
    from torch.distributed.tensor import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def state_of_another_placement(p, o, mesh, dtensor):
    o.state[p]["exp_avg"] = dtensor.DTensor.from_local(torch.zeros(8, 4), mesh, [dtensor.Replicate()])


def gradient_of_another_placement(p, o, mesh, dtensor):
    p.grad = dtensor.DTensor.from_local(torch.ones(8, 4), mesh, [dtensor.Replicate()])


@pytest.mark.parametrize("change", [state_of_another_placement, gradient_of_another_placement, None])
def test_only_what_is_parted_alike_is_stepped_by_its_parts(mesh, change, monkeypatch):
    import torch.distributed.tensor as dtensor

    def part(value):
        return dtensor.DTensor.from_local(torch.full((4, 4), value), mesh, [dtensor.Shard(0)])

    made = []
    on_parts = sharded_steps._on_parts
    monkeypatch.setattr(sharded_steps, "_on_parts", lambda o: made.append(on_parts(o)) or made[-1])
    p, q = torch.nn.Parameter(part(1.0)), torch.nn.Parameter(torch.ones(3))
    sharded_steps.take_steps_over([p])
    o = torch.optim.AdamW([p, q], 0.1, foreach=False)
    for k in range(2):
        p.grad, q.grad = part(1.0), torch.ones(3)
        if k and change is not None:
            change(p, o, mesh, dtensor)
        o.step()
    # (a gradient is placed as its parameter is before the step)
    assert len(made) == (1 if change is state_of_another_placement else 2)
    assert type(o.state[p]["exp_avg_sq"]) is dtensor.DTensor and o.state[p]["step"] == 2
    if change is not state_of_another_placement:
        assert torch.equal(p._local_tensor[0, :3], q)


class Other(torch.Tensor):
    """A class of the program's with an attribute of DTensor's name."""

    _spec = None


def test_a_class_of_the_program_s_is_no_dtensor():
    from tcompile.compiler.graph.wrappers import is_dtensor

    assert not is_dtensor(Other)
