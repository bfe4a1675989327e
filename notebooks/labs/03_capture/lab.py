# lab: 3
# name: capture
# minutes: 80
# stage: capture

# %% text: story

# %% given: values
import operator

import torch
import torch.fx

from tcompile.labs.plugs import Decline, capture_stage, explain_with

torch.manual_seed(0)
x, y = torch.randn(64, 128), torch.randn(64, 128)


class Value:
    """Stands for a tensor: the node that computes it, and an example of what it gives."""

    def __init__(self, graph, node, example):
        self.graph, self.node, self.example = graph, node, example

    def __repr__(self):
        return f"Value({self.node}, {tuple(self.example.shape)})"


def gate(x, y):
    h = torch.sigmoid(x) * y
    return 1 - h.amax(-1, keepdim=True)


# %% exercise: mapped
def mapped(thing, change):
    """`thing` with `change(v)` for every Value in it, also inside of tuples, lists, dicts and slices."""
    # BEGIN SOLUTION
    if isinstance(thing, Value):
        return change(thing)
    if isinstance(thing, tuple):
        return tuple(mapped(t, change) for t in thing)
    if isinstance(thing, list):
        return [mapped(t, change) for t in thing]
    if isinstance(thing, dict):
        return {k: mapped(v, change) for k, v in thing.items()}
    if isinstance(thing, slice):
        return slice(mapped(thing.start, change), mapped(thing.stop, change), mapped(thing.step, change))
    return thing
    # END SOLUTION


# %% exercise: record
def record(graph, target, args, kwargs):
    """Write a call into the graph, and give what stands for its result.

    `target` is a function, or the name of a tensor's method. A tensor becomes a Value, a tuple or list of tensors a
    tuple of Values, a plain Python value stays one, with no node. Decline tensors that are no Values.
    """
    # BEGIN SOLUTION
    method = isinstance(target, str)
    if method and target.endswith("_"):
        raise Decline(f"{target} changes a tensor")
    foreign = []
    torch.fx.node.map_aggregate((args, kwargs), lambda a: foreign.append(a) if isinstance(a, torch.Tensor) else a)
    if foreign:
        raise Decline("a tensor that is no input")
    real_args, real_kwargs = mapped(args, lambda v: v.example), mapped(kwargs, lambda v: v.example)
    real = getattr(real_args[0], target)(*real_args[1:], **real_kwargs) if method else target(*real_args, **real_kwargs)
    if isinstance(real, (bool, int, float, str, torch.Size, torch.dtype, torch.device)):
        return real
    node_args, node_kwargs = mapped(args, lambda v: v.node), mapped(kwargs, lambda v: v.node)
    make = graph.call_method if method else graph.call_function
    node = make(target, node_args, node_kwargs)
    if isinstance(real, torch.Tensor):
        return Value(graph, node, real)
    if isinstance(real, (tuple, list)) and all(isinstance(r, torch.Tensor) for r in real):
        return tuple(Value(graph, graph.call_function(operator.getitem, (node, i)), r) for i, r in enumerate(real))
    raise Decline(f"a result of type {type(real).__name__}")
    # END SOLUTION


# %% exercise: add_operators
OPERATORS = ("add", "sub", "mul", "truediv", "pow", "matmul", "neg", "getitem", "lt", "le", "gt", "ge")


def add_operators(cls):
    """Give a class of Values Python's operators: x + y, 2 - x, -x, x[0], x > 0."""

    # BEGIN SOLUTION
    def install(name):
        function = getattr(operator, name)
        setattr(cls, f"__{name}__", lambda self, *others: record(self.graph, function, (self, *others), {}))
        if name in ("add", "sub", "mul", "truediv", "pow", "matmul"):
            setattr(cls, f"__r{name}__", lambda self, other: record(self.graph, function, (other, self), {}))

    for name in OPERATORS:
        install(name)
    # END SOLUTION


# %% exercise: add_functions
def add_functions(cls):
    """Give a class of Values torch's functions, methods and facts: torch.relu(x), x.sum(-1), x.shape."""

    # BEGIN SOLUTION
    def torch_function(cls, function, types, args=(), kwargs=None):
        values = []
        mapped((args, kwargs or {}), lambda v: values.append(v) or v)
        return record(values[0].graph, function, args, kwargs or {})

    def attribute(self, name):
        if name in ("shape", "dtype", "device", "ndim"):
            return getattr(self.example, name)
        if name.startswith("__") or not callable(getattr(torch.Tensor, name, None)):
            raise AttributeError(name)
        return lambda *args, **kwargs: record(self.graph, name, (self, *args), kwargs)

    cls.__torch_function__ = classmethod(torch_function)
    cls.__getattr__ = attribute
    # END SOLUTION


# %% exercise: trace
def trace(function, values):
    """Run a function on Values for its tensors; give the torch.fx.Graph. `values` has the arguments by name."""

    # BEGIN SOLUTION
    def decline(self, *args):
        raise Decline("Python asks for a tensor's value, or changes it")

    add_operators(Value)
    add_functions(Value)
    for name in (
        "__bool__",
        "__float__",
        "__int__",
        "__index__",
        "__iter__",
        "__len__",
        "__setitem__",
        "item",
        "tolist",
    ):
        setattr(Value, name, decline)
    graph = torch.fx.Graph()
    given = {}
    for name, value in values.items():
        given[name] = Value(graph, graph.placeholder(name), value) if isinstance(value, torch.Tensor) else value
    result = function(**given)
    graph.output(mapped(result, lambda v: v.node))
    return graph
    # END SOLUTION


# %% text: plugged

# %% show: picture
graph = trace(gate, {"x": x, "y": y})
course.graph(graph)

# %% show: stages
report = explain_with("capture", capture_stage(trace), gate, x, y)
course.stages(report)

# %% show: kernels
course.kernels(report)

# %% text: challenge-story


# %% given: wasteful
def wasteful(x, y):
    a = torch.sigmoid(x) * y
    b = torch.sigmoid(x) * y
    torch.tanh(y)
    return a + b * torch.sigmoid(x)


# %% exercise: slim challenge
def slim(graph):
    """Change a graph in place: what nobody reads goes, and what is computed twice is computed once."""
    # BEGIN SOLUTION
    seen = {}
    for node in list(graph.nodes):
        if node.op not in ("call_function", "call_method"):
            continue
        name = getattr(node.target, "__name__", str(node.target))
        if "rand" in name or "dropout" in name or "bernoulli" in name:
            continue
        key = (node.op, node.target, repr((node.args, node.kwargs)))
        if key in seen:
            node.replace_all_uses_with(seen[key])
            graph.erase_node(node)
        else:
            seen[key] = node
    graph.eliminate_dead_code()
    # STUDENT
    # return None
    # END SOLUTION


# %% tests
import operator

import torch
import torch.fx

from tcompile.labs.plugs import capture_stage, explain_with
from tcompile.labs.testing import at_most, holds, raises, same, stage_ran, tensors_close


def value(lab, graph, name, example):
    return lab.Value(graph, graph.placeholder(name), example)


def two(lab):
    graph = torch.fx.Graph()
    return graph, value(lab, graph, "x", torch.arange(6.0).reshape(2, 3)), value(lab, graph, "y", torch.ones(2, 3))


def equipped(lab, *how):
    """The values of `two`, with the student's operators (and functions)."""
    lab.add_operators(lab.Value)
    for add in how:
        add(lab.Value)
    return two(lab)


def nodes(graph):
    return [(n.op, n.target if isinstance(n.target, str) else n.target.__name__) for n in graph.nodes]


def ran(lab, program, *args, declined=False):
    """The report of a call with the student's trace as capture; right, and not declined unless so said."""
    report = explain_with("capture", capture_stage(lab.trace), program, *args)
    got, want = report.result, program(*args)
    got, want = (r if isinstance(r, tuple) else (r,) for r in (got, want))
    same(len(got), len(want), what=f"len({program.__name__}(...))", look="plug")
    for g, w in zip(got, want):
        tensors_close(g, w, what=f"{program.__name__}(...)", look="plug")
    if not declined:
        stage_ran(report, "capture", lab.trace, look="plug")
        same(len(report.graphs), 1, what="len(report.graphs)", look="plug")
    return report


def norm(x, w, eps):
    c = x - x.mean(-1, keepdim=True)
    return c / (c.pow(2).mean(-1, keepdim=True) + eps) ** 0.5 * w


def halves(x):
    a, b = torch.chunk(x, 2, dim=-1)
    largest, _ = torch.max(a, dim=0)
    return largest, b[0] * x.shape[-1]


def joined(x, y):
    return torch.cat([x, y[:, :1]], dim=1)


def again(lab, program, *args):
    """The number of nodes behind `slim`, which must compute the same."""
    graph = lab.trace(program, dict(zip(program.__code__.co_varnames, args)))
    lab.slim(graph)
    graph.lint()
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    tensors_close(module(*args), program(*args), what=f"slim(trace({program.__name__}))", look="slim")
    return sum(n.op.startswith("call") for n in graph.nodes)


# %% test: mapped points=2
def test_values_in_containers(lab):
    _, x, y = two(lab)
    got = lab.mapped((x, [y, 2], {"k": x, "n": None}), lambda v: v.node.name)
    same(
        got,
        ("x", ["y", 2], {"k": "x", "n": None}),
        what="mapped((x, [y, 2], {'k': x, 'n': None}), name)",
        look="mapped",
    )


# %% hidden: mapped points=1
def test_values_in_slices_and_deep(lab):
    _, x, y = two(lab)
    same(lab.mapped(slice(x, None, 2), lambda v: 7), slice(7, None, 2), what="mapped(slice(x, None, 2))", look="mapped")
    same(lab.mapped(((((x,),),),), lambda v: 7), ((((7,),),),), what="mapped(((((x,),),),))", look="mapped")
    same(lab.mapped("text", lambda v: 7), "text", what="mapped('text')", look="mapped")


# %% test: record points=3
def test_a_call_is_recorded(lab):
    graph, x, y = two(lab)
    z = lab.record(graph, torch.add, (x, y), {"alpha": 2})
    holds(
        isinstance(z, lab.Value),
        what="isinstance(record(graph, torch.add, (x, y), {'alpha': 2}), Value)",
        look="record",
    )
    tensors_close(z.example, x.example + 2 * y.example, what="the result's example", look="record")
    same(nodes(graph)[-1], ("call_function", "add"), what="the last node", look="record")
    same([n.name for n in z.node.args], ["x", "y"], what="its arguments", look="record")


def test_a_method_is_recorded(lab):
    graph, x, _ = two(lab)
    z = lab.record(graph, "sum", (x, -1), {"keepdim": True})
    same(
        nodes(graph)[-1],
        ("call_method", "sum"),
        what="the last node of record(graph, 'sum', (x, -1), ...)",
        look="record",
    )
    tensors_close(z.example, x.example.sum(-1, keepdim=True), what="the result's example", look="record")


# %% hidden: record points=2
def test_a_tuple_of_tensors(lab):
    graph, x, _ = two(lab)
    parts = lab.record(graph, torch.chunk, (x, 3), {"dim": 1})
    same(len(parts), 3, what="len(record(graph, torch.chunk, (x, 3), {'dim': 1}))", look="tuples")
    tensors_close(parts[2].example, x.example[:, 2:], what="the third part", look="tuples")
    same(parts[1].node.target, operator.getitem, what="what computes the second part", look="tuples")


def test_plain_values_leave_no_node(lab):
    graph, x, _ = two(lab)
    before = len(nodes(graph))
    same(lab.record(graph, "size", (x, 0), {}), 2, what="record(graph, 'size', (x, 0), {})", look="plain")
    same(len(nodes(graph)), before, what="nodes behind it", look="plain")


def test_other_tensors_and_changes_are_declined(lab):
    graph, x, _ = two(lab)
    raises(lab.Decline, lambda: lab.record(graph, torch.add, (x, torch.ones(3)), {}), "record with a tensor", "foreign")
    raises(lab.Decline, lambda: lab.record(graph, "add_", (x, 1), {}), "record of add_", "foreign")


# %% test: add_operators points=3
def test_operators(lab):
    graph, x, y = equipped(lab)
    tensors_close((x * y + 1).example, x.example * y.example + 1, what="(x * y + 1).example", look="operators")
    tensors_close((2 - x).example, 2 - x.example, what="(2 - x).example", look="reflected")
    tensors_close((-x)[0].example, -x.example[0], what="(-x)[0].example", look="operators")


# %% hidden: add_operators points=2
def test_the_graph_computes_them_too(lab):
    graph, x, y = equipped(lab)
    z = (2 / (x + 1)) ** 2 - (x > y) * 3 + 2**y
    graph.output(z.node)
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    a, b = torch.rand(2, 3), torch.rand(2, 3)
    want = (2 / (a + 1)) ** 2 - (a > b) * 3 + 2**b
    tensors_close(module(a, b), want, what="(2 / (x + 1)) ** 2 - (x > y) * 3 + 2**y", look="reflected")


# %% test: add_functions points=3
def test_functions_methods_and_facts(lab):
    graph, x, y = equipped(lab, lab.add_functions)
    tensors_close(
        torch.relu(x - 2).example, torch.relu(x.example - 2), what="torch.relu(x - 2).example", look="functions"
    )
    tensors_close(
        x.sum(-1, keepdim=True).example, x.example.sum(-1, keepdim=True), what="x.sum(-1).example", look="functions"
    )
    same(x.shape, torch.Size([2, 3]), what="x.shape", look="functions")
    same(nodes(graph)[-1], ("call_method", "sum"), what="the last node", look="functions")


# %% hidden: add_functions points=2
def test_functions_of_lists(lab):
    graph, x, y = equipped(lab, lab.add_functions)
    z = torch.cat([x, y], dim=0)
    tensors_close(z.example, torch.cat([x.example, y.example]), what="torch.cat([x, y]).example", look="functions")
    same(torch.where(x > 1, x, y).shape, x.shape, what="torch.where(x > 1, x, y).shape", look="functions")
    tensors_close(torch.sin(input=x).example, x.example.sin(), what="torch.sin(input=x).example", look="functions")


def test_what_tensors_lack_values_lack(lab):
    _, x, _ = equipped(lab, lab.add_functions)
    raises(AttributeError, lambda: x.no_such_thing, "x.no_such_thing", "functions")


# %% test: trace points=4
def test_it_captures_in_the_real_pipeline(lab):
    ran(lab, lab.gate, torch.linspace(-2, 2, 12).reshape(3, 4), torch.ones(3, 4))


def test_tuples_and_sizes(lab):
    ran(lab, halves, torch.linspace(-2, 2, 12).reshape(2, 6))


# %% hidden: trace points=2
def test_numbers_are_constants(lab):
    x = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(2, 6)
    ran(lab, norm, x, torch.ones(6, dtype=torch.float64), 1e-5)
    ran(lab, norm, x, torch.ones(6, dtype=torch.float64), 0.5)
    ran(lab, joined, torch.ones(2, 3), torch.zeros(2, 3))


def test_a_branch_on_a_tensor_is_declined(lab):
    def branch(x):
        return x + 1 if x.sum() > 0 else x - 1

    for x in (torch.ones(4), -torch.ones(4)):
        ran(lab, branch, x, declined=True)


def test_a_number_read_is_declined(lab):
    def scaled(x):
        return x / float(x.max())

    def listed(x):
        return x * x.max().item()

    for program in (scaled, listed):
        ran(lab, program, torch.arange(1.0, 5.0), declined=True)


def test_a_tensor_made_inside_is_declined(lab):
    def noise(x):
        return x + torch.ones(4)

    ran(lab, noise, torch.ones(4), declined=True)


# %% test: slim points=3
def test_slim_keeps_the_result(lab):
    count = again(lab, lab.wasteful, torch.linspace(-1, 1, 8), torch.ones(8))
    at_most(count, 6, what="nodes of slim(trace(wasteful))", look="slim")


# %% hidden: slim points=2
def test_slim_finds_chains(lab):
    at_most(again(lab, lab.wasteful, torch.linspace(-1, 1, 8), torch.ones(8)), 4, what="nodes of wasteful", look="slim")


def test_slim_tells_arguments_apart(lab):
    def sums(x):
        return x.sum(0, keepdim=True) * x.sum(1, keepdim=True) + (x * 1) * (x * 1.5)

    same(again(lab, sums, torch.arange(6.0).reshape(2, 3)), 7, what="nodes of sums", look="slim")


def test_random_numbers_are_drawn_twice(lab):
    def noisy(x):
        return torch.rand_like(x) - torch.rand_like(x)

    graph = lab.trace(noisy, {"x": torch.ones(4)})
    lab.slim(graph)
    same(sum("rand" in str(n.target) for n in graph.nodes), 2, what="calls of rand_like behind slim", look="random")


# %% score
def score(lab):
    x, y = torch.linspace(-1, 1, 8), torch.ones(8)
    return {"nodes": again(lab, lab.wasteful, x, y)}
