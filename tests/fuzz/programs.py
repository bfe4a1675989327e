"""A writer of random Python programs on tensors: the first oracle's input (DESIGN section 11).

`programs()` is a Hypothesis strategy of Python source texts that define `def f(a, b, n): ...`, where `a` and `b` are float
tensors of shape (4, 3) and `n` is a small int. The programs use control flow, containers, views, mutation, closures,
exceptions, and constructs that break a graph. They always terminate, and every value stays finite or becomes inf/nan the same
way in eager.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

UNARY = ("torch.sin({})", "torch.tanh({})", "{}.abs()", "torch.sigmoid({})", "-{}", "torch.relu({})", "{}.exp().clamp(max=50.0)",
         "{}.float()", "torch.nn.functional.gelu({})", "({} > 0).float()", "torch.nan_to_num({})", "{} * 2 + 1", "torch.softmax({}, -1)",
         "torch.where({0} > 0.5, {0}, -{0})", "{0} - {0}.mean()", "{0} / (1 + {0}.abs().sum(-1, keepdim=True))", "{}.double().float()",
         "torch.nn.functional.layer_norm({}, (3,))", "{}.cumsum(0)", "{}.clone()", "{}.contiguous()", "{}.flip(0)", "{}.sort(0).values")
BINARY = ("{} + {}", "{} - {}", "{} * {}", "torch.maximum({}, {})", "torch.where({0} > {1}, {0}, {1})", "{} / (2 + {}.abs())",
          "torch.stack([{}, {}]).sum(0)", "torch.cat([{}, {}])[:4]", "{0} @ {1}.t() @ {0} * 0.1", "torch.lerp({}, {}, 0.3)", "torch.addcmul({0}, {1}, {0})")
VIEWS = ("{}.t().t()", "{}.view(3, 4).reshape(4, 3)", "{}[:, :]", "{}.unsqueeze(0).squeeze(0)", "{}.transpose(0, 1).contiguous().transpose(0, 1)",
         "{}.expand(4, 3)", "{}.view(-1).view(4, 3)", "{}.permute(1, 0).permute(1, 0)", "{}[[3, 2, 1, 0]]")
INPLACE = ("{}.add_(1)", "{}.mul_(0.5)", "{}[0] = 1.5", "{}[:, 1] += 2", "{}[n % 4].zero_()", "{}.view(-1)[2:5].add_(1)", "{}.t()[0].mul_(2)",
           "{}.clamp_(-2, 2)", "{} += 1", "{}.relu_()")
CONDITIONS = ("n > 2", "n % 2 == 0", "{}.shape[0] == 4", "{}.dim() > 1", "len(items) > 1", "n in (1, 3)", "isinstance(n, int)", "not items")
TENSOR_CONDITIONS = ("{}.sum() > 0", "({} > 0).any()", "bool(({} < 1).all())", "{}.mean().item() > 0.1")


@dataclass
class _Writer:
    draw: object
    tensors: list = field(default_factory=lambda: ["a", "b"])
    n: int = 0
    breaks: int = 0
    depth: int = 0

    def pick(self, xs):
        return self.draw(st.sampled_from(list(xs)))

    def tensor(self):
        return self.pick(self.tensors)

    def fresh(self):
        self.n += 1
        return f"t{self.n}"

    def expression(self):
        kind = self.pick(("unary", "unary", "binary", "binary", "view"))
        if kind == "unary":
            return self.pick(UNARY).format(self.tensor())
        if kind == "binary":
            x, y = self.tensor(), self.tensor()
            return self.pick(BINARY).format(x, y)
        return self.pick(VIEWS).format(self.tensor())

    def block(self, size, indent):
        saved, lines = list(self.tensors), []
        for _ in range(self.draw(st.integers(1, size))):
            lines += self.statement(indent)
        self.tensors = saved
        return lines

    def assign(self, indent):
        e, v = self.expression(), self.fresh()
        self.tensors.append(v)
        return [f"{indent}{v} = {e}"]

    def statement(self, indent):
        kinds = ["assign"] * 6 + ["again", "inplace", "append", "dict", "int", "unpack", "global", "format"]
        if self.depth < 2:
            kinds += ["if", "for", "closure", "comprehension", "try", "while", "generator", "object", "with"]
            if self.breaks < 3:
                kinds += ["tensor_if", "item", "print", "loop_break"]
        return getattr(self, "s_" + self.pick(kinds))(indent)

    s_assign = assign

    def s_again(self, i):
        own = [t for t in self.tensors if t not in ("a", "b")]
        return [f"{i}{self.pick(own)} = {self.expression()}"] if own else self.assign(i)

    def s_inplace(self, i):
        v = self.fresh()
        target = self.pick(("clone", "alias", "input"))
        src = self.tensor()
        first = f"{i}{v} = ({src}.clone() if True else None)" if target != "alias" else f"{i}{v} = ({src} * 1)[:]"
        self.tensors.append(v)
        name = v if target != "input" else self.pick(("a", "b"))
        return [first, f"{i}{self.pick(INPLACE).format(name)}"]

    def s_append(self, i):
        return [f"{i}items.append({self.tensor()})"]

    def s_dict(self, i):
        v = self.fresh()
        k = self.pick("xyz")
        out = [f"{i}table[{k!r}] = {self.tensor()} + 1", f"{i}{v} = table.get({self.pick('xyz')!r}, {self.tensor()})"]
        self.tensors.append(v)
        return out

    def s_int(self, i):
        return [f"{i}n = {self.pick(('n + 1', 'n * 2 % 7', 'max(n - 1, 0)', 'len(items) + n', 'abs(n - 3)', 'n // 2'))}"]

    def s_unpack(self, i):
        u, v = self.fresh(), self.fresh()
        out = [f"{i}{u}, {v} = {self.pick(('({0}, {1})', '[{0}, {1} * n]', '{0}.chunk(1)[0], {1}', 'torch.unbind(torch.stack([{0}, {1}]))'))}".format(self.tensor(), self.tensor())]
        self.tensors += [u, v]
        return out

    def s_global(self, i):
        return [f"{i}STATE['calls'] = STATE.get('calls', 0) + 1"]

    def s_format(self, i):
        return [f"{i}notes.append(f\"{{n}}:{{{self.tensor()}.shape[0]}}\")"]

    def s_if(self, i):
        self.depth += 1
        c = self.pick(CONDITIONS).format(self.tensor())
        v = self.fresh()
        out = [f"{i}{v} = {self.tensor()}", f"{i}if {c}:", *self.block(2, i + "    "), f"{i}    {v} = {self.expression()}", f"{i}else:", f"{i}    {v} = {self.expression()}"]
        self.depth -= 1
        self.tensors.append(v)
        return out

    def s_tensor_if(self, i):
        self.depth += 1
        self.breaks += 1
        c = self.pick(TENSOR_CONDITIONS).format(self.tensor())
        v = self.fresh()
        out = [f"{i}{v} = {self.tensor()}", f"{i}if {c}:", *self.block(2, i + "    "), f"{i}    {v} = {self.expression()}"]
        if self.draw(st.booleans()):
            out += [f"{i}else:", f"{i}    {v} = {self.expression()}"]
        self.depth -= 1
        self.tensors.append(v)
        return out

    def s_item(self, i):
        self.breaks += 1
        v = self.fresh()
        out = [f"{i}s{self.n} = {self.tensor()}.mean().item()", f"{i}{v} = {self.tensor()} + max(min(s{self.n}, 2.0), -2.0)"]
        self.tensors.append(v)
        return out

    def s_print(self, i):
        self.breaks += 1
        return [f"{i}print('seen', round(float({self.tensor()}.abs().clamp(max=9).sum()), 2))"]

    def s_for(self, i):
        self.depth += 1
        v, k = self.fresh(), f"k{self.n}"
        it = self.pick(("range(n % 4)", "range(3)", "enumerate([1, 2])", "zip([1, 2, 3], 'ab')", "[2, 1]", "list(items)[:2]"))
        target = k if not it.startswith(("enumerate", "zip")) else f"{k}, _"
        e = self.expression()
        out = [f"{i}{v} = {self.tensor()}", f"{i}for {target} in {it}:", f"{i}    {v} = {v} * 0.5 + {e}", *self.block(2, i + "    ")]
        if self.draw(st.booleans()):
            out.append(f"{i}    if n == {self.draw(st.integers(0, 4))}: {self.pick(('break', 'continue'))}")
        self.depth -= 1
        self.tensors.append(v)
        return out

    def s_loop_break(self, i):
        self.depth += 1
        self.breaks += 1
        v = self.fresh()
        out = [f"{i}{v} = {self.tensor()}", f"{i}for j{self.n} in range(3):", f"{i}    {v} = {v} * 0.7 + {self.tensor()}", f"{i}    if {v}.sum() > {self.draw(st.integers(-3, 3))}:",
               f"{i}        {v} = {v} - 1", f"{i}    {v} = torch.sin({v})"]
        self.depth -= 1
        self.tensors.append(v)
        return out

    def s_while(self, i):
        v, c = self.fresh(), f"w{self.n}"
        out = [f"{i}{v} = {self.tensor()}", f"{i}{c} = n % 3", f"{i}while {c} > 0:", f"{i}    {v} = torch.cos({v}) + {self.tensor()}", f"{i}    {c} -= 1"]
        self.tensors.append(v)
        return out

    def s_closure(self, i):
        self.depth += 1
        g, v, t = f"g{self.n}", self.fresh(), self.tensor()
        nonlocal_ = self.draw(st.booleans())
        out = [f"{i}c{g} = {self.draw(st.integers(0, 3))}", f"{i}def {g}(x, k=2):"]
        if nonlocal_:
            out += [f"{i}    nonlocal c{g}", f"{i}    c{g} += k"]
        out += [f"{i}    return x * c{g} + {t}", f"{i}{v} = {g}({self.tensor()}) + {g}({self.tensor()}, k=1)"]
        self.depth -= 1
        self.tensors.append(v)
        return out

    def s_comprehension(self, i):
        v = self.fresh()
        out = [f"{i}{v} = sum([{self.tensor()} * q for q in range(1, 3) if q != n], {self.tensor()})"]
        self.tensors.append(v)
        return out

    def s_generator(self, i):
        v = self.fresh()
        out = [f"{i}{v} = torch.stack(list(q + {self.tensor()} for q in ({self.tensor()}, {self.tensor()}))).amax(0)"]
        self.tensors.append(v)
        return out

    def s_object(self, i):
        v, o = self.fresh(), f"o{self.n}"
        out = [f"{i}{o} = Box({self.tensor()})", f"{i}{o}.count += n", f"{i}{v} = {o}.scaled(2) + {o}.count"]
        self.tensors.append(v)
        return out

    def s_with(self, i):
        v = self.fresh()
        out = [f"{i}with {self.pick(('torch.no_grad()', 'Note(notes)', 'torch.enable_grad()'))}:", f"{i}    {v} = {self.expression()}"]
        self.tensors.append(v)
        return out

    def s_try(self, i):
        self.depth += 1
        v = self.fresh()
        what = self.pick(("[1][n]", "{}[n % 2]", "int('x' * (n % 2) + '1')", "1 // (n % 2)", "dict(a=1)['ab'[n % 2]]"))
        out = [f"{i}{v} = {self.tensor()}", f"{i}try:", f"{i}    {v} = {self.expression()}", f"{i}    q = {what}", f"{i}    {v} = {v} + 1",
               f"{i}except (IndexError, KeyError, ValueError, ZeroDivisionError) as err:", f"{i}    notes.append(type(err).__name__)", f"{i}    {v} = {v} - 1"]
        if self.draw(st.booleans()):
            out += [f"{i}finally:", f"{i}    notes.append('done')"]
        self.depth -= 1
        self.tensors.append(v)
        return out


PRELUDE = '''
import torch
STATE = {}
class Box:
    def __init__(self, x):
        self.x, self.count = x, 0
    def scaled(self, k):
        self.count += 1
        return self.x * k
class Note:
    def __init__(self, notes):
        self.notes = notes
    def __enter__(self):
        self.notes.append("in")
    def __exit__(self, *exc):
        self.notes.append("out")
'''


@st.composite
def programs(draw) -> str:
    w = _Writer(draw)
    body = []
    for _ in range(draw(st.integers(2, 8))):
        body += w.statement("    ")
    result = ", ".join(draw(st.lists(st.sampled_from(w.tensors), min_size=1, max_size=3)))
    return "\n".join([PRELUDE, "def f(a, b, n):", "    items, table, notes = [a], {}, []", *body, f"    return [{result}], items, table, notes, n", ""])
