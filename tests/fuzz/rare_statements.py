"""Kinds of statement that few programs have: exceptions, cleanups, views kept for later, local classes, autograd."""

from __future__ import annotations

from .writing import Writing

RARE = (
    "with_as",
    "managed",
    "suppress",
    "tensor_error",
    "nested_try",
    "cause",
    "delete",
    "sets",
    "merge",
    "stars",
    "local_class",
    "recursive",
    "chunks",
    "out",
    "stored_view",
    "gradient",
    "backward",
    "float_argument",
    "ternary",
    "assertion",
    "shape_match",
    "while_true",
    "for_else",
    "meter",
    "delegate",
    "late_error",
    "caught_error",
    "index_error",
    "global_number",
    "lambdas",
    "data",
    "keep_exception",
    "unbound",
    "swap",
    "augmented",
    "return_in_finally",
    "comprehensions",
    "dict_views",
    "formatting",
    "write_then_fail",
    "shared_list",
    "own_iterator",
)


class RareStatements(Writing):
    def s_with_as(self, i):
        v, e = self.fresh(), self.expression()
        out = [
            f"{i}with Quiet(notes, 'q') as q{v}, torch.no_grad():",
            f"{i}    {v} = {e}",
            f"{i}    q{v}.name = {self.pick(('str(n)', repr('z')))}",
        ]
        self.tensors.append(v)
        return out

    def s_managed(self, i):
        v = self.fresh()
        out = [
            f"{i}with managed(notes, {self.tensor()}) as {v}:",
            f"{i}    {v} = {v} + {self.tensor()}",
            *([f"{i}    if n == {self.integer(0, 4)}: raise Problem('m')"] if self.flag() else []),
        ]
        self.tensors.append(v)
        return out

    def s_suppress(self, i):
        v, t, e = self.fresh(), self.tensor(), self.expression()
        self.tensors.append(v)
        return [
            f"{i}{v} = {t}",
            f"{i}with Quiet(notes, 's'):",
            f"{i}    {v} = {e}",
            f"{i}    if n == {self.integer(0, 4)}: raise Problem({self.pick(('n', repr('x')))})",
            f"{i}    {v} = {v} + 1",
        ]

    def s_tensor_error(self, i):
        """An operator that fails for some n, caught or not."""
        v, t = self.fresh(), self.tensor()
        what = self.pick(
            (
                f"{t} @ torch.ones(n % 3 + 2, 3)",
                f"{t}.view(n + 1, -1)",
                f"{t} + torch.ones(n + 2)",
                f"torch.cat([{t}, torch.ones(4, n)])[:, :3]",
                f"{t}[n]",
                f"{t}.sum(n - 1) + {t}[0, 0]",
                f"{t}.to(torch.int32) @ {t}" if self.flag() else f"{t}.transpose(0, n)",
                f"{t}.expand(n, 4, 3)[0]",
                f"torch.stack([{t}, {t}[:n]])[0]",
                f"{t}.reshape(3, n + 1).t()",
            )
        )
        self.tensors.append(v)
        return [
            f"{i}{v} = {t}",
            f"{i}try:",
            f"{i}    box['list'].append(n)",
            f"{i}    {self.pick(('a', 'b'))}.add_(1)",
            f"{i}    {v} = ({what}).sum() + {t}",
            f"{i}    notes.append('went')",
            f"{i}except {self.pick(('RuntimeError', '(RuntimeError, IndexError)', 'Exception'))} as e{v}:",
            f"{i}    notes.append((type(e{v}).__name__, str(e{v})[:40]))",
        ]

    def s_late_error(self, i):
        """The program fails by an operator, after effects."""
        t = self.tensor()
        what = self.pick(
            (
                f"{t} @ torch.ones(n % 3 + 2, 2)",
                f"{t}[:n + 1].view(4, 3)",
                f"torch.index_select({t}, 0, torch.tensor([n]))",
                f"{t}[torch.tensor([1, n])]",
                f"{t}[n]",
                f"{t} + torch.ones(5 - n % 3)",
            )
        )
        return [
            f"{i}box['list'].append({self.tensor()} * 2)",
            f"{i}STATE['late'] = n",
            f"{i}{self.pick(('a', 'b', 'c'))}.mul_(0.5)",
            f"{i}notes.append(({what}).shape)",
        ]

    def s_caught_error(self, i):
        """Values decide whether the operator fails."""
        v, t = self.fresh(), self.tensor()
        what = self.pick(
            (
                f"torch.index_select({t}, 0, torch.tensor([n]))",
                f"{t}[torch.tensor([0, n])]",
                f"torch.nn.functional.embedding(torch.tensor([n]), {t})",
                "torch.linalg.cholesky(torch.eye(3) * (2 - n))[:, 0]",
                f"torch.nn.functional.one_hot(torch.tensor([n]), 4).float() @ {t}",
                f"{t}.gather(0, torch.tensor([[n, 0, n]]))",
                f"torch.nn.functional.nll_loss({t}, torch.tensor([n, 0, 1, 2])) + {t}",
                "torch.tensor([6]) // torch.tensor([n % 2])",
            )
        )
        self.tensors.append(v)
        # an operator that nobody reads is not run
        return [
            f"{i}{v} = {t}",
            f"{i}try:",
            f"{i}    box['list'].append('before')",
            f"{i}    {v} = ({what}).sum() + {t}",
            f"{i}    box['list'].append('after')",
            f"{i}except Exception as e{v}:",
            f"{i}    notes.append(type(e{v}).__name__)",
            f"{i}extra.append({v}.sum())",
        ]

    def s_write_then_fail(self, i):
        """Inputs change, effects happen, then values decide that an operator fails; uncaught."""
        t = self.tensor()
        what = self.pick(
            (
                f"torch.index_select({t}, 0, torch.tensor([n]))",
                f"{t}[torch.tensor([0, n])]",
                f"torch.nn.functional.embedding(torch.tensor([n]), {t})",
                f"{t}.gather(0, torch.tensor([[n, 0, n]]))",
                "torch.linalg.cholesky(torch.eye(3) * (3.5 - n))",
            )
        )
        return [
            f"{i}{self.pick(('a', 'b', 'c'))}{self.pick(('.add_(1)', '.mul_(0.5)', '[0] = n', '.t()[1].zero_()'))}",
            f"{i}box['last'] = {self.tensor()} + 1",
            f"{i}COUNTS[0] += 1",
            f"{i}{self.pick(('print(n)', 'pass'))}",
            *self.bind(i, f"({what}).sum() + {t}"),
            f"{i}box['list'].append({self.tensors[-1]}.sum())",
        ]

    def s_nested_try(self, i):
        v, t, e = self.fresh(), self.tensor(), self.expression()
        self.tensors.append(v)
        return [
            f"{i}{v} = {t}",
            f"{i}try:",
            f"{i}    try:",
            f"{i}        {v} = {e}",
            f"{i}        if n % 2: raise {self.pick(('Problem(n)', 'KeyError(n)'))}",
            f"{i}    except KeyError as e{v}:",
            f"{i}        raise Problem('inner') from e{v}",
            f"{i}    finally:",
            f"{i}        notes.append('inner finally')",
            f"{i}        {v} = {v} + 1",
            f"{i}except Problem as e{v}:",
            f"{i}    notes.append((e{v}.args, type(e{v}.__cause__).__name__, type(e{v}.__context__).__name__))",
            f"{i}else:",
            f"{i}    notes.append('fine')",
        ]

    def s_cause(self, i):
        return [
            f"{i}try:",
            f"{i}    {{}}[n]",
            f"{i}except KeyError as e0:",
            f"{i}    notes.append(e0.args)",
            f"{i}    if n == {self.integer(0, 5)}: raise Problem('cause', n) {self.pick(('from e0', 'from None', ''))}",
        ]

    def s_keep_exception(self, i):
        return [
            f"{i}try: raise Problem(n, {self.tensor()})",
            f"{i}except Problem as e1: kept = e1",
            *self.bind(i, "kept.args[1] * kept.args[0]"),
            f"{i}notes.append(repr(type(kept)))",
        ]

    def s_delete(self, i):
        v, t = self.fresh(), self.tensor()
        return [
            f"{i}{v}_ = [{t}, {self.tensor()}, 1]",
            f"{i}del {v}_[{self.pick(('0', '-1', 'n % 2', '1:'))}]",
            f"{i}notes.append(len({v}_))",
            f"{i}del {v}_",
            *self.bind(i, f"{t} + 0.5"),
        ]

    def s_unbound(self, i):
        v = self.fresh()
        return [
            f"{i}if n > {self.integer(0, 3)}: u{v} = n",
            f"{i}try: notes.append(u{v})",
            f"{i}except UnboundLocalError as e: notes.append('unbound')",
        ]

    def s_sets(self, i):
        return [
            f"{i}s{self.n} = {{n, 1, 'k'}} {self.pick(('|', '&', '-', '^'))} {{2, n % 2, 'k'}}",
            f"{i}notes.append(sorted(map(str, s{self.n})))",
            f"{i}s{self.n}.add(n); s{self.n}.discard(1)",
            *self.bind(i, f"{self.tensor()} * len(s{self.n})"),
        ]

    def s_merge(self, i):
        return [
            f"{i}table = {{**table, 'm': {self.tensor()}}}",
            f"{i}table |= {{'n': {self.tensor()}}}",
            *self.bind(i, "table['m'] + ({} | table)['n']"),
            f"{i}notes.append(list(table))",
        ]

    def s_stars(self, i):
        v, ts = self.fresh(), [self.tensor() for _ in range(3)]
        self.tensors += [v, v + "r"]
        return [
            f"{i}{v}, *{v}s = [{', '.join(ts)}]",
            f"{i}{v}r = gather(*{v}s, k={self.pick(('n', '2'))})",
            f"{i}*{v}h, {v}t = {v}s",
            f"{i}notes.append(len({v}h))",
        ]

    def s_local_class(self, i):
        v, t = self.fresh(), self.tensor()
        out = [
            f"{i}class L{v}{self.pick(('', '(Box)'))}:",
            f"{i}    k = n",
            f"{i}    def go(self, y): return y * self.k + {t}",
            f"{i}{v} = L{v}.go(L{v}{self.pick(('.__new__(L' + v + ')', '.__new__(L' + v + ')'))}, {self.tensor()})",
        ]
        self.tensors.append(v)
        return out

    def s_recursive(self, i):
        g, t = f"r{self.n}", self.tensor()
        return [
            f"{i}def {g}(x, k):",
            f"{i}    return x if k <= 0 else {g}(x * 0.5 + {t}, k - 1)",
            *self.bind(i, f"{g}({self.tensor()}, n % 4)"),
        ]

    def s_chunks(self, i):
        v, t = self.fresh(), self.tensor()
        return [
            f"{i}{v}_ = {t}.clone()",
            f"{i}{v}p, {v}q = {v}_{self.pick(('.chunk(2)', '.split(2)', '.unbind(1)[:2]', '[:2], ' + v + '_[2:]'))}",
            f"{i}{v}p{self.pick(('.add_(1)', '.mul_({v}q)', '.copy_({v}q)')).format(v=v)}",
            f"{i}{v}q[0] = {v}p[1]",
            *self.bind(i, f"{v}_ + 0"),
        ]

    def s_out(self, i):
        v, t = self.fresh(), self.tensor()
        return [
            f"{i}{v}_ = torch.empty(4, 3)",
            f"{i}torch.add({t}.detach(), {self.tensor()}.detach(), out={v}_{self.pick(('', '[:]'))})",
            *self.bind(i, f"{v}_ * 2"),
        ]

    def s_stored_view(self, i):
        """A view of an input is kept by the caller; both change later."""
        t = self.pick(("a", "b", "c"))
        return [
            f"{i}box['view'] = {t}{self.pick(('[1:]', '.t()', '[0]', '.view(-1)', '[:, 1]', ''))}",
            f"{i}{t}.add_({self.pick(('1', 'n', 's'))})",
            f"{i}box['view']{self.pick(('.mul_(2)', '[0] += 1', '.sub_(0.5)'))}",
            *self.bind(i, f"{t} + box['view'].sum()"),
        ]

    def s_gradient(self, i):
        v, t = self.fresh(), self.tensor()
        return [
            f"{i}{v}_ = {t}.detach().clone().requires_grad_()",
            *self.bind(i, f"torch.autograd.grad(({v}_ * {v}_ * {self.pick(('n', 's', '0.5'))}).sum(), {v}_)[0]"),
        ]

    def s_backward(self, i):
        v, t = self.fresh(), self.tensor()
        return [
            f"{i}{v}_ = {t}.detach().clone().requires_grad_()",
            f"{i}with torch.enable_grad():",
            f"{i}    (torch.sin({v}_) * {self.tensor()}.detach()).sum().backward()",
            *self.bind(i, f"{v}_.grad * 2"),
            f"{i}extra.append({v}_.grad is None)",
        ]

    def s_float_argument(self, i):
        return self.bind(
            i,
            self.pick(
                (
                    "{t} * s",
                    "{t} + (s if s > 0 else -s)",
                    "torch.add({t}, {u}, alpha=s)",
                    "torch.full((3,), s) * {t}",
                    "{t}.clamp(-abs(s), abs(s))",
                    "torch.where({t} > s, {t}, s)",
                    "{t} * int(s)",
                    "{t} * round(s, 1)",
                    "{t} + s * n",
                    "{t} / (s or 1.0)",
                    "{t} ** 2 * max(s, 0.1)",
                    "{t} + float(n) ** abs(s)",
                )
            ).format(t=self.tensor(), u=self.tensor()),
        )

    def s_ternary(self, i):
        return self.bind(
            i,
            self.pick(
                (
                    "{t} if n > 2 else {u}",
                    "(n and {t}) if n else {u}",
                    "({t} if 0 < n < 4 else {u}) + 0",
                    "{t} if s > 0 and n != 3 or not items else {u}",
                )
            ).format(t=self.tensor(), u=self.tensor()),
        )

    def s_assertion(self, i):
        return [
            i
            + self.pick(
                (
                    "assert n < 9, 'never'",
                    "assert n != {k}, f'n is {{n}}'",
                    "assert {t}.shape[0] == 4",
                    "assert not ({t}.sum() > 1e30)",
                    "assert n >= 0 and isinstance(s, float)",
                )
            ).format(k=self.integer(0, 6), t=self.tensor())
        ]

    def s_shape_match(self, i):
        t, u, v = self.tensor(), self.tensor(), self.fresh()
        self.tensors.append(v)
        return [
            f"{i}match {self.pick((f'tuple({t}.shape)', f'[*{t}.shape, n]', 'box', 'Data(n, 2)', 's'))}:",
            f"{i}    case (4, k): {v} = {t} * k",
            f"{i}    case [4, _, 3 | 1]: {v} = {t} + 3",
            f"{i}    case {{'d': d, **rest}}: {v} = {t} + d",
            f"{i}    case Data(x=3, k=2): {v} = {u} - 3",
            f"{i}    case float() as q if q > 0: {v} = {u} * q",
            f"{i}    case _: {v} = {u}",
        ]

    def s_while_true(self, i):
        v, t, c = self.fresh(), self.tensor(), f"y{self.n}"
        self.tensors.append(v)
        return [
            f"{i}{v}, {c} = {t}, 0",
            f"{i}while True:",
            f"{i}    {c} += 1",
            f"{i}    if {c} > n % 4: break",
            f"{i}    if {c} == 2: continue",
            f"{i}    {v} = {v} * 0.5 + {self.tensor()}",
        ]

    def s_for_else(self, i):
        v, t = self.fresh(), self.tensor()
        self.tensors.append(v)
        return [
            f"{i}{v} = {t}",
            f"{i}for k{v} in range(3):",
            f"{i}    for m{v} in range(2):",
            f"{i}        if k{v} + m{v} == n: break",
            f"{i}        {v} = {v} + m{v}",
            f"{i}    else:",
            f"{i}        continue",
            f"{i}    break",
            f"{i}else:",
            f"{i}    {v} = -{v}",
        ]

    def s_meter(self, i):
        return [
            f"{i}m{self.n} = Meter()",
            f"{i}with m{self.n}: {self.pick(('pass', f'm{self.n}.update({self.tensor()})'))}",
            *self.bind(i, f"m{self.n}.update({self.tensor()}) * m{self.n}.x_y"),
            f"{i}notes.append(list(m{self.n - 1}.history))",
            f"{i}notes.append((m{self.n - 1} == Meter(), hasattr(m{self.n - 1}, 'gone')))",
        ]

    def s_delegate(self, i):
        v, t = self.fresh(), self.tensor()
        self.tensors.append(v)
        return self.pick(
            (
                [f"{i}{v} = sum(delegate({t}, n % 3, notes), {self.tensor()})"],
                [
                    f"{i}{v}g = produce({t}, 3, notes)",
                    f"{i}{v} = next({v}g) + {v}g.send({self.tensor()})",
                    f"{i}{v}g.close()",
                ],
                [
                    f"{i}{v} = {t}",
                    f"{i}for {v}q in produce({t}, 3, notes):",
                    f"{i}    {v} = {v} + {v}q",
                    f"{i}    if n == 3: break",
                    f"{i}del {v}q",
                ],
                [f"{i}*_, {v} = delegate({t}, 2, notes)"],
            )
        )

    def s_index_error(self, i):
        return [
            f"{i}try: notes.append({self.pick(('items[n]', 'box[n]', 'notes[n * 5]', 'int(str(s))', 'n.foo', '[] + n', 'n()', 'len(n)', 'undefined_name', 'next(iter([]))', 'sum([[1]])'))})",
            f"{i}except (IndexError, KeyError, ValueError, AttributeError, TypeError, NameError, StopIteration) as e2: notes.append((type(e2).__name__, str(e2)))",
        ]

    def s_global_number(self, i):
        return [
            f"{i}COUNTS.append(n)",
            f"{i}bump(n + 1)",
            *self.bind(i, f"{self.tensor()} * (COUNT % 3) + len(COUNTS) % 4"),
        ]

    def s_lambdas(self, i):
        return self.bind(
            i,
            self.pick(
                (
                    "(lambda q, k=n: q * k)({t})",
                    "[f_ for f_ in (torch.sin, torch.cos)][n % 2]({t})",
                    "(lambda *q, **k: q[0] + k['z'])({t}, z={u})",
                    "sorted([{t}, {u}], key=lambda q: n)[0] * 2",
                    "next(filter(lambda q: q is not None, [None, {t}])) + 1",
                    "(lambda: {t})() + (lambda q: q)({u})",
                )
            ).format(t=self.tensor(), u=self.tensor()),
        )

    def s_data(self, i):
        v, t = self.fresh(), self.tensor()
        return [
            f"{i}{v}_ = {t}.clone()",
            f"{i}{v}_.data{self.pick(('.mul_(2)', '[0] = 1', ' = ' + t + '.detach() * 3'))}",
            *self.bind(i, f"{v}_ + 1"),
        ]

    def s_swap(self, i):
        own = [t for t in self.tensors if t not in ("a", "b", "c")]
        if len(own) < 2:
            return self.assign(i)
        x, y = self.pick(own), self.pick(own)
        return [f"{i}{x}, {y} = {y}, {x}"] if x != y else [f"{i}{x} = {y}"]

    def s_augmented(self, i):
        v, t = self.fresh(), self.tensor()
        self.tensors.append(v)
        return [
            f"{i}{v} = {self.pick((t, t + ' * 1', t + '[:]', 'a', 'c[:]'))}",
            f"{i}{v} {self.pick(('+=', '-=', '*='))} {self.pick((self.tensor(), 'n', 's', '0.5'))}",
        ]

    def s_return_in_finally(self, i):
        g = f"z{self.n}"
        return [
            f"{i}def {g}(x):",
            f"{i}    for k in range(3):",
            f"{i}        try:",
            f"{i}            if k == n % 3: return x * k",
            f"{i}            if k == 2: raise Problem(k)",
            f"{i}        finally:",
            f"{i}            notes.append(k)",
            f"{i}            {self.pick(('pass', 'if k == 2: return -x', 'if k == 2: break', 'if k == 1: continue'))}",
            f"{i}    return x + 9",
            f"{i}try:",
            f"{i}    box['z'] = {g}({self.tensor()})",
            f"{i}except Problem as e3: notes.append(e3.args)",
        ]

    def s_comprehensions(self, i):
        return self.bind(
            i,
            self.pick(
                (
                    "sum([q * k for q in ({t}, {u}) for k in range(n % 3)], {t})",
                    "{{k: v * 2 for k, v in zip('ab', ({t}, {u}))}}['b']",
                    "torch.stack([*map(lambda q: q + n, ({t}, {u}))])[n % 2]",
                    "[[{t} * k for k in range(2)] for _ in range(2)][1][n % 2] + {u}",
                    "sum(q for q in (w + 1 for w in [{t}, {u}]))",
                    "[y for x in [{t}] if (y := x * n) is not None][0]",
                    "max([{t}, {u}], key=lambda q: q.dim() + n)",
                    "{t} * len({{k % 2 for k in range(n)}})",
                )
            ).format(t=self.tensor(), u=self.tensor()),
        )

    def s_dict_views(self, i):
        return [
            f"{i}for k4, v4 in {self.pick(('box', 'table', 'STATE'))}.items(): notes.append(k4)",
            f"{i}notes.append((list(table.keys()), len(box.values()), 'list' in box, {{*box}} >= {{'list'}}))",
        ]

    def s_formatting(self, i):
        return [
            f"{i}notes.append({self.pick(('f{q}{{n:03d}} {{s:.1f}}{q}', 'f{q}{{n=}} {{tuple(a.shape)!r:>12}}{q}', '{q}%s %.1f{q} % (n, s)', 'str(a.dtype) + repr(n)', '{q}{{0:>{{1}}}}{q}.format(n, 4)', 'str(box[{q}list{q}][:0])')).format(q=chr(34))})"
        ]

    def s_shared_list(self, i):
        v = self.fresh()
        return [
            f"{i}{v}l = box['list']",
            f"{i}{v}l.append({self.pick(('n', self.tensor(), 'box[repr(n)] if repr(n) in box else 3'))})"
            if self.flag()
            else f"{i}{v}l[:] = {v}l[-3:] + [n]",
            f"{i}{v}l {self.pick(('+= [1]', '*= 1', '= ' + v + 'l + [2]'))}",
            f"{i}notes.append(len(box['list']))",
        ]

    def s_own_iterator(self, i):
        v, t = self.fresh(), self.tensor()
        self.tensors.append(v)
        return [
            f"{i}{v}i = {self.pick((f'iter([{t}, n, {t}])', f'zip([{t}, {t}], [1, 2])', f'enumerate([{t}])', f'reversed([{t}, n])', 'iter(items)', f'iter({{n: {t}}}.items())'))}",
            f"{i}{v}k = next({v}i)",
            f"{i}{v} = {self.tensor()} + len(list({v}i))",
        ]

    # ---- breaks, in many places
