"""A cell that runs again compiles nothing, though it makes its classes, models and optimizers anew."""

from __future__ import annotations

import abc
import collections
import linecache
import random
import textwrap

import pytest
import torch

import tcompile
from tcompile.compiler import events
from tcompile.compiler.config import Options
from tcompile.compiler.frontend import hook
from tcompile.compiler.guards import held_places
from tcompile.compiler.runtime import frame_hook

pytestmark = pytest.mark.skipif(not frame_hook.available(), reason="the C extension is not built")


@pytest.fixture(autouse=True)
def clean():
    hook.reset()
    yield
    hook.reset()


def compiled(text, name):
    text = textwrap.dedent(text)
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    return compile(text, name, "exec")


def captures_of_runs(build, run, runs=4, **names):
    """What was captured in each run of a cell, after another cell has made anew what it runs; results are eager's."""
    build, run = compiled(build, "<cell that builds>"), compiled(run, "<cell that runs>")
    space, opts, found = {"torch": torch, **names}, Options.make(None, "eager", False, None, None), []
    for number in range(runs):
        space["number"] = number
        plain = dict(space)
        exec(build, plain)
        exec(run, plain)
        exec(build, space)
        began = []
        with events.listen(lambda e: began.append(e.frame) if e.kind == "capture_begin" else None):
            hook.run_code(run, space, opts)
        torch.testing.assert_close(space["out"], plain["out"])
        found.append(began)
    assert found[0]
    return found


TWO_OPTIMIZERS = """
    class G(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.n = torch.nn.Linear(4, 6)
        def forward(self, z):
            return torch.tanh(self.n(z))
    class D(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.n = torch.nn.Linear(6, 1)
        def forward(self, x):
            return self.n(x).sigmoid()
    torch.manual_seed(number // 2)
    def run():
        g, d = G(), D()
        og, od = torch.optim.Adam(g.parameters(), 0.01), torch.optim.Adam(d.parameters(), 0.01)
        losses = []
        for _ in range(4):
            fake = g(torch.randn(5, 4))
            od.zero_grad()
            ld = (d(torch.ones(5, 6)) - 1).square().mean() + d(fake.detach()).square().mean()
            ld.backward()
            od.step()
            og.zero_grad()
            lg = (d(fake) - 1).square().mean()
            lg.backward()
            og.step()
            losses.append(ld.item() + lg.item())
        return torch.tensor(losses) * 2
"""


def test_two_optimizers_and_their_losses():
    """In the second run neither optimizer has a state yet, and in the third the losses are others."""
    found = captures_of_runs(TWO_OPTIMIZERS, "out = run()")
    assert not found[1] and set(found[2]) <= {"<module>"}  # (whether what calls the rest of `run` has work of its own)


DECORATED = """
    import copy
    class Average:
        def __init__(self, model):
            self.model = copy.deepcopy(model)
        @torch.no_grad()
        def update(self, model):
            for a, b in zip(self.model.parameters(), model.parameters()):
                a.mul_(0.9).add_(b, alpha=0.1)
        @torch.autocast("cpu", dtype=torch.bfloat16)
        def half(self, x):
            return self.model(x)
    def run():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        average = Average(model)
        x = torch.ones(3, 4)
        for _ in range(3):
            average.update(model)
            x = average.half(x).float() + model(x)
        print(end="")
        return x * 2, average.half(x)
"""


def test_methods_that_modes_of_torch_decorate():
    found = captures_of_runs(DECORATED, "out = run()")
    assert not found[1] and set(found[2]) <= {"<module>"}


@pytest.mark.parametrize("registered", [False, True])
def test_abstract_classes(registered):
    """One with which others were registered is asked by isinstance(): it is another class in each run."""
    build = f"""
        class Rule(abc.ABC):
            @abc.abstractmethod
            def __call__(self, x): ...
        class Half(Rule):
            def __call__(self, x):
                return x * 0.5 if isinstance(1, Rule) else x.sin() * 2
        if {registered}:
            Rule.register(int)
    """
    found = captures_of_runs(build, "out = Half()(x + 1)", abc=abc, x=torch.ones(3))
    assert bool(found[1]) is registered, found


def test_other_modes_are_another_definition():
    """A decorator with another mode: what was compiled under the old one serves no call."""
    build = """
        class Under:
            @torch.set_grad_enabled(number % 2 == 0)
            def __call__(self, x):
                return (x * w).sum()
        under = Under()
    """
    w = torch.ones(3, requires_grad=True)
    run = "out = torch.tensor(under(torch.ones(3)).requires_grad)"
    captures_of_runs(build, run, w=w)


def test_what_follows_the_last_call_is_looked_at_once():
    build = """
        def run():
            y = torch.ones(3) * number
            print(end="")
            return y + 1
    """
    found = captures_of_runs(build, "out = run()", runs=6)
    assert not any(found[2:]), found  # (`number` becomes a symbol in the second run)


def test_a_history_that_grows():
    """What is printed at each fourth step reads how long the history is, and its last items."""
    build = """
        def run():
            torch.manual_seed(number)
            layer = torch.nn.Linear(4, 4)
            optimizer, history, lines = torch.optim.SGD(layer.parameters(), 0.1), {"loss": []}, []
            for step in range(13):
                loss = layer(torch.randn(3, 4)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                history["loss"].append(loss.item())
                if len(history["loss"]) % 4 == 0:
                    lines.append(f"{len(history['loss'])}: {history['loss'][-1]:.3f}, {sum(history['loss'][-4:]) / 4:.3f}")
            return torch.tensor(history["loss"]), torch.tensor([len(line) for line in lines])
    """
    found = captures_of_runs(build, "out = run()")
    assert not any(f for frames in found[1:] for f in frames if "loop" in f), found


def test_the_steps_of_a_grad_scaler():
    """It keeps what it knows of an optimizer under its address, which is another one in each run."""
    build = """
        def run():
            torch.manual_seed(0)
            layer, scaler = torch.nn.Linear(4, 4), torch.amp.GradScaler("cpu")
            optimizer = torch.optim.SGD(layer.parameters(), 0.1)
            for _ in range(4):
                loss = layer(torch.ones(3, 4)).square().mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            return loss.detach() * 2, layer.weight.detach().clone()
    """
    found = captures_of_runs(build, "out = run()", runs=6)
    assert not any("run" in frame for frames in found[1:] for frame in frames), found


def test_a_loop_that_is_passed_over():
    """Nobody knows when the last reference to the bar goes, which has a __del__: the loop is looked at three times."""
    build = """
        class Bar:
            def __init__(self, items):
                self.items = items
            def __iter__(self):
                yield from self.items
            def __del__(self):
                print(end="")
        def run():
            x = torch.ones(3)
            for epoch in range(6):
                bar = Bar(range(3))
                for i in bar:
                    x = x * 0.5 + i
                print(end="")
            return x
    """
    found = captures_of_runs(build, "out = run()", runs=4)
    assert not any(found[2:]), found


@pytest.mark.parametrize("kept", ["losses", "table"])
def test_what_a_cell_has_collected(kept):
    """The losses of a run differ a little from those of the one before. A cell's own lines read them after its loop."""
    text = f"""
        torch.manual_seed(number)
        layer = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        losses, table = [], {{}}
        for i, x in enumerate(data):
            loss = layer(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            table[i] = loss.item()
        last = {kept}[len({kept}) - 1]
        out = torch.tensor(list({kept}.values() if isinstance({kept}, dict) else {kept})) * 2 + float(last)
    """
    found = captures_of_runs("", text, data=[torch.randn(2, 4) for _ in range(9)])
    assert not any(found[2:]) and len(found[1]) <= 1, found


def test_a_cell_that_goes_through_what_it_collects():
    text = """
        kept, means = [], {}
        for i, x in enumerate(data):
            y = x.tanh() * (number + 2)
            kept.append(y.sum().item())
            total = 0.0
            for v in kept:
                total += v
            means[i] = total / len(kept)
            y = y + kept[len(kept) // 2]
        out = y * total
    """
    found = captures_of_runs("", text, data=[torch.randn(5) for _ in range(12)])
    assert not any(found[2:]) and len(found[0]) < 30, found


def test_sums_that_begin_as_whole_numbers():
    """`total = right = 0`, and a float from the second turn on; the count is 1 in that turn, which is a case of its
    own."""
    build = """
        shifted = [x + number for x in data]
        def run():
            total = right = 0
            for i, x in enumerate(shifted):
                y = x * 2
                total += y.square().sum().item()
                right += int(i == 0) + 2 * int(i > 1)
                print(end="")
            return y * total, torch.tensor([float(total), float(right)])
    """
    found = captures_of_runs(build, "out = run()", data=[torch.randn(5) for _ in range(6)])
    assert not any("loop" in frame for frames in found[1:] for frame in frames), found


def test_a_seed_a_folder_and_a_time_of_the_run():
    """None of them is a constant of an entry, wherever the cell hands it on."""
    build = """
        __name__ = "__main__"
        import os, random, time
        this_run = disable(lambda: f"run{number}")
        class Settings:
            pass
        def train(seed, folder, settings):
            torch.manual_seed(seed)
            layer = torch.nn.Linear(8, 2)
            for _ in range(3):
                loss = layer(x).square().mean()
                loss.backward()
                with torch.no_grad():
                    for p in layer.parameters():
                        p -= 0.1 * p.grad
                        p.grad = None
            path = f"{folder}/model-{settings.seed}.pt"
            os.path.exists(path)
            return loss.item(), path
    """
    run = """
        seed = random.Random(this_run()).randrange(1000, 1000000)
        began = time.time()
        folder = os.path.realpath("/" + this_run())
        settings = Settings()
        settings.seed = seed
        loss, path = train(seed, folder, settings)
        taken = time.time() - began
        out = torch.ones(3) * loss + seed
        said = f"{path}: {loss:.3f}"
        end = torch.ones(2) * taken
    """
    found = captures_of_runs(build, run, x=torch.randn(16, 8), disable=torch.compiler.disable)
    assert not any(found[1:]), found


SMALL = {
    "a number": "n = drawn()\nout = x * 2 + n",
    "what is computed of it": "n = drawn()\nk = n * 3 - 1\nout = x * k",
    "behind another break": "n = drawn()\nk = n + 1\nprint(end='')\nout = x * k + n",
    "a size": "n = drawn()\nout = (x[:n] * 2).sum()",
    "one of two results": "a, b = drawn(), drawn()\na, b = divmod_of(a, 7)\nout = x * a + b",
    "a letter": "c = letter()\nname = c + '.txt'\nout = x * 2 + 1\nsaid = f'{name}: {c}'",
    "a float without a fraction": "f = float_of(drawn())\nout = x * f",
    "in a function": "def f():\n    n = drawn()\n    print(end='')\n    return x * n + 1\nout = f()",
    "a counter": "step = step + 1\nout = x * step",
    "a counter that goes on after a break": "step += 1\nprint(end='')\nout = x * step + 1",
    "the best so far": "loss = float((x * drawn()).sum())\nbest = min(best, loss)\nout = x * best",
}


@pytest.mark.parametrize("what", SMALL)
def test_small_numbers_and_letters_of_the_run(what):
    """They are everywhere, so they are known by their place and name."""
    disable = torch.compiler.disable
    names = {
        "drawn": disable(lambda: 20 + 7 * names["space"]["number"]),
        "letter": disable(lambda: "abcdefgh"[names["space"]["number"]]),
        "divmod_of": disable(lambda a, b: divmod(a, b)),
        "float_of": disable(lambda n: float(n)),
        "x": torch.randn(64, 3),
    }
    build, run = compiled("", "<cell that builds>"), compiled(SMALL[what], "<cell that runs>")
    plain, space = ({"torch": torch, "step": 5, "best": 100.0, **names} for _ in range(2))
    found = []
    for number in range(4):
        began = []
        for space_now in (plain, space):
            names["space"] = space_now
            space_now["number"] = number
            exec(build, space_now)
            if space_now is plain:
                exec(run, plain)
                continue
            with events.listen(lambda e: began.append(e.frame) if e.kind == "capture_begin" else None):
                hook.run_code(run, space, Options.make(None, "eager", False, None, None))
        found.append(began)
        same = ("n", "k", "a", "b", "name", "said", "step", "best", "f")
        assert {k: plain[k] for k in same if k in plain and not callable(plain[k])} == {
            k: space[k] for k in same if k in plain and not callable(plain[k])
        }
        torch.testing.assert_close(space["out"], plain["out"])
    assert found[0] and not any(found[1:]), found


def test_constants_of_a_cell_stay_constants():
    """Sizes that a cell sets itself are fixed, though a break lies behind them and another cell counts in that name."""
    run = compiled("n = 4\nprint(end='')\nout = torch.ones(n, 3) * x", "<cell with a constant>")
    count, opts = (
        compiled("n = n + 1\nout = x * n", "<cell that counts>"),
        Options.make(None, "eager", False, None, None),
    )
    space, sizes = {"torch": torch, "x": torch.ones(3), "n": 5}, []
    for _ in range(2):
        hook.run_code(count, space, opts)
        with events.listen(lambda e: sizes.append(e.graph.graph_module.graph) if e.kind == "graph" else None):
            hook.run_code(run, space, opts)
        assert space["n"] == 4 and torch.equal(space["out"], torch.ones(4, 3))
    ones = [n for graph in sizes for n in graph.nodes if n.target is torch.ones]
    assert ones and all(type(a) is int for n in ones for a in (n.args[0] if type(n.args[0]) is tuple else n.args[:1]))


def test_outside_values_stay_right():
    """A number or text from outside that the program looks into is a constant after all; as a size it may vary."""
    build = """
        import os
        def look(name, n):
            y = torch.ones(n) * 2
            return y.sum() + (10.0 if name == "/even" else 1.0) + (0.5 if n > 400 else 0.0)
    """
    run = """
        name = os.path.realpath("/even" if number % 2 == 0 else "/odd")
        n = int(os.path.basename(os.path.realpath(f"/{300 + 100 * number}")))
        print(end="")
        out = look(name, n) * torch.ones(2)
    """
    captures_of_runs(build, run, runs=5)


def test_the_plan_of_guards_is_not_made_again_for_a_class_defined_anew(monkeypatch):
    """It was kept when the entry was made: the second run of a cell exchanges the class in it."""
    build = """
        __name__ = "__main__"
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.n = torch.nn.Linear(4, 3)
            def forward(self, x):
                return self.n(x).relu() * 2
    """
    made, make_plan = [], held_places.make_plan
    monkeypatch.setattr(held_places, "make_plan", lambda *args: made.append(args) or make_plan(*args))
    begun = []
    with events.listen(lambda e: begun.append(len(made)) if e.kind == "renamed" else None):
        found = captures_of_runs(build, "net = Net()\nout = net(x) + net(x)", x=torch.randn(2, 4))
    assert not any(found[1:]) and begun and made and {*begun} == {len(made)}, (found, begun, len(made))


def test_lines_that_are_passed_over_for_one_reason_are_given_up():
    """accelerate's loaders say that they are torch's. Each run of a cell looked at its lines once more."""
    found = captures_of_runs("", "out = x\nfor y in lies:\n    out = out + y", 7, **lying())
    assert found[0][:1] == ["<module>"] and not any("<module>" in frames for frames in found[4:]), found


def lying():
    x = torch.ones(3)

    class Lies:
        __class__ = property(lambda self: list)

        def __iter__(self):
            return iter([x, x + 1])

    return {"x": x, "lies": Lies()}


class Meter:
    def __init__(self):
        self.avg, self.rate = 0.0, 0.5

    def update(self, x):
        self.avg = self.avg * self.rate + x


def test_numbers_that_objects_hold():
    """A meter's mean, and a named tuple's loss; what somebody wrote stays a constant."""
    build = """
    @torch._dynamo.disable
    def train(meter):
        for i in range(3):
            meter.update((number + i) / 7)
        return Result(3, 1.1 / (number + 3))
    def run():
        meter = Meter()
        result = train(meter)
        x = torch.ones(3) * 2
        return [meter.avg, (x * meter.rate).sum() + meter.avg, result.loss]
    """
    result = collections.namedtuple("Result", "steps loss")
    assert captures_of_runs(build, "out = run()", Meter=Meter, Result=result)[1:] == [[], [], []]


def test_batches_that_are_drawn_from_a_memory():
    """Flags and numbers of a batch are other ones in each step, and so is which tensors of it are one; the class that
    names the fields is made anew in each run.
    """
    build = """
        Step = collections.namedtuple("Step", "state action next_state done")
        def run():
            draws, memory, state, out = random.Random(0), collections.deque(maxlen=40), torch.ones(3), []
            layer = torch.nn.Linear(3, 2, bias=False)
            torch.nn.init.ones_(layer.weight)
            for step in range(60):
                after = state * 0.9 + 0.1
                memory.append(Step(state, step + 2, after, step % 4 == 3))
                state = after
                if len(memory) >= 20:
                    batch = Step(*zip(*draws.sample(memory, 20)))
                    value = layer(torch.stack(batch.state)).sum(1) - layer(torch.stack(batch.next_state)).sum(1)
                    weight = 1 - torch.tensor(batch.done, dtype=torch.float32)
                    out.append((value * weight * torch.tensor(batch.action)).mean().item())
            return torch.tensor(out)
    """
    found = captures_of_runs(build, "out = run()", random=random, collections=collections)
    assert len(found[0]) < 30 and not any("loop" in frame for frames in found[1:] for frame in frames), found


def test_what_no_entry_serves_twice_is_given_up():
    """Each call needs an entry of its own: later runs use those that there are, and make no more."""
    build = """
        def f(x, key):
            n = (x + 1).sum().item()
            return x.sin() * key[1] + n
        def run():
            out = []
            for key in keys:
                out.append(f(x, key))
            return torch.stack(out)
        x = torch.ones(3)
        keys = [bytes([0, i]) for i in range(20)]
    """
    found = captures_of_runs(build, "out = run()")
    assert len(found[0]) > 16 and not any(found[1:]), found


@pytest.mark.parametrize("best", ["if loss < best: best = loss", "best = min(best, loss)"])
def test_the_best_loss_so_far(best):
    """Two numbers that are others in each turn are compared by Python: neither is fixed."""
    build = "torch.manual_seed(number)\nlayer = torch.nn.Linear(4, 4)"
    run = f"""
        best, waited, out = 1e9, 0, []
        for epoch in range(12):
            loss = (layer(torch.ones(3, 4)).square().mean() / (epoch + 2)).item()
            torch.manual_seed(epoch)
            waited = waited + 1 if loss * 2 > best else 0
            {best}
            out.append(torch.rand(2) * best + waited)
        out = torch.stack(out)
    """
    found = captures_of_runs(build, run)
    assert len(found[0]) <= 10 and not any("loop" in frame for frames in found[1:] for frame in frames), found


def test_counters_of_a_loop_are_no_second_program():
    """What one turn hands to the next differs in the second turn: the first is compiled for any number."""
    build = """
        def run():
            torch.manual_seed(0)
            model, x, y = torch.nn.Linear(4, 3), torch.randn(32, 4), torch.randint(0, 3, (32,))
            right, seen, loss = 0, 0, 0.0
            for i in range(0, 32, 8):
                print(end="")
                scores = model(x[i : i + 8])
                right += int((scores.argmax(1) == y[i : i + 8]).sum())
                loss += torch.nn.functional.cross_entropy(scores, y[i : i + 8]).item()
                seen += len(scores)
            return torch.tensor([right, seen, loss])
    """
    found = captures_of_runs(build, "out = run()")
    assert sum(".<loop at line" in frame for frame in found[0]) == 1 and not found[2]


def test_the_rest_of_a_turn_knows_the_loops_item():
    """What follows a break in a turn is given the item under the program's name, and is compiled for any number."""
    build = """
        def run():
            torch.manual_seed(0)
            model, x, out = torch.nn.Linear(4, 3), torch.randn(5, 4), []
            for step, (a, b) in enumerate([(0, 4), (1, 6), (7, 8), (9, 10)]):
                bins = torch.bincount(model(x).argmax(1))
                y = torch.tanh(model(x) * (step + a) + b)
                print(end="")
                out.append((y * step - a).sum() + bins.sum())
            return torch.stack(out)
    """
    again = []
    with events.listen(lambda e: again.append(e.frame) if e.kind == "recompile" else None):
        captures_of_runs(build, "out = run()", runs=1)
    assert not again


def test_a_call_that_breaks_the_graph_and_gives_an_empty_tuple():
    @tcompile.disable
    def names(x):
        return ()

    def f(x):
        y = x * 2
        found = names(y)
        return torch.tanh(y) + 1 + len(found)

    compiled, x = tcompile.compile(f), torch.randn(4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), f(x))
