"""Kinds of statement that break a graph in an odd place: in blocks, loops, handlers, callees and arguments."""

from __future__ import annotations

from .writing import Writing

BREAKING = (
    "break_in_with",
    "break_in_try",
    "break_in_loop_in_with",
    "break_in_callee",
    "break_in_comprehension",
    "break_in_lambda",
    "break_in_generator",
    "break_in_while",
    "break_in_nested_loops",
    "break_in_finally",
    "break_in_except",
    "break_in_match",
    "break_in_closure",
    "risky_callee",
    "print_tensor",
    "tolist",
    "nonzero",
    "numpy",
    "break_in_class",
    "break_in_argument",
    "break_in_condition",
    "break_in_recursion",
    "return_in_loop",
    "break_in_else",
    "break_in_managed",
)


class BreakingStatements(Writing):
    def s_break_in_with(self, i):
        self.breaks += 1
        v, t = self.fresh(), self.tensor()
        self.tensors.append(v)
        return [
            f"{i}with {self.pick(('torch.no_grad()', 'Note(notes)', 'Quiet(notes, str(n))', 'Quiet(notes, str(n)), torch.enable_grad(), Note(notes)', 'region(), managed(notes, b)'))}:",
            f"{i}    {v} = torch.sin({t})",
            f"{i}    if {v}.sum() > {self.integer(-2, 2)}:",
            f"{i}        {v} = {v} - {self.tensor()}",
            f"{i}    {v} = {v} * {self.tensor()}",
            *([f"{i}    if n == 3: raise Problem('in with')"] if self.flag() else []),
        ]

    def s_break_in_try(self, i):
        self.breaks += 1
        v, t = self.fresh(), self.tensor()
        self.tensors.append(v)
        return [
            f"{i}{v} = {t}",
            f"{i}try:",
            f"{i}    {v} = {v} * 2",
            f"{i}    k{v} = {self.pick(('float', 'int', 'bool'))}({v}.nan_to_num().clamp(-9, 9).sum())",
            f"{i}    {v} = {v} + max(min(k{v}, 2), -2)",
            f"{i}    {self.pick(('pass', 'raise Problem(n)', 'items[n + 3]', f'{v} @ {v}'))}",
            f"{i}except (Problem, IndexError, RuntimeError) as e5:",
            f"{i}    notes.append(type(e5).__name__)",
            f"{i}    {v} = {v} - 1",
            f"{i}{self.pick(('else', 'finally'))}:",
            f"{i}    {v} = {v} * 0.5",
        ]

    def s_break_in_loop_in_with(self, i):
        self.breaks += 1
        v, t = self.fresh(), self.tensor()
        self.tensors.append(v)
        return [
            f"{i}{v} = {t}",
            f"{i}with {self.pick(('Quiet(notes, str(n))', 'Note(notes)', 'region()', 'torch.no_grad()'))}:",
            f"{i}    for k{v} in range(3):",
            f"{i}        with Note(notes):",
            f"{i}            {v} = {v} * 0.5 + {self.tensor()}",
            f"{i}            if {v}.mean() > {self.integer(-1, 1)}: {self.pick(('break', 'continue', 'notes.append(k' + v + ')', v + ' = -' + v))}",
            f"{i}        {v} = torch.cos({v})",
            f"{i}    {v} = {v} + 1",
            *([f"{i}{v} = {v} * 2"] if self.flag() else []),
        ]

    def s_break_in_callee(self, i):
        self.breaks += 1
        return self.bind(
            i,
            self.pick(
                (
                    "branchy({t}) + {u}",
                    "counted({t}, notes) + branchy({u})",
                    "branchy(branchy({t}))",
                    "gather(branchy({t}), {u}, k=n)",
                    "[branchy({t}), {u}][n % 2] + 1",
                    "Box(branchy({t})).scaled(2)",
                    "sum(map(branchy, [{t}, {u}]))",
                    "functools.reduce(lambda p, q: branchy(p + q), [{t}, {u}])",
                    "sorted([{t}, {u}], key=lambda q: float(q.mean()) if n else 0)[0] + 0",
                )
            ).format(t=self.tensor(), u=self.tensor()),
        )

    def s_break_in_comprehension(self, i):
        self.breaks += 1
        return self.bind(
            i,
            self.pick(
                (
                    "sum([branchy(q) for q in ({t}, {u})])",
                    "sum([q for q in ({t}, {u}) if q.sum() > 0], {t})",
                    "{{k: branchy(v) for k, v in enumerate([{t}, {u}])}}[1]",
                    "sum(branchy(q) for q in [{t}, {u}])",
                    "sum([q * float(q.mean().nan_to_num().clamp(-2, 2)) for q in [{t}, {u}]])",
                    "[counted(q, notes) for q in [{t}, {u}] if n][-1] if n else {t}",
                )
            ).format(t=self.tensor(), u=self.tensor()),
        )

    def s_break_in_lambda(self, i):
        self.breaks += 1
        return self.bind(
            i,
            self.pick(
                (
                    "(lambda q: q * float(q.sum() > 0))({t})",
                    "(lambda q, k=1: q + k if q.sum() > 0 else q - k)({t}, k=n)",
                    "(lambda *q: [x + 1 if x.mean() > 0 else x for x in q])({t}, {u})[-1]",
                )
            ).format(t=self.tensor(), u=self.tensor()),
        )

    def s_break_in_generator(self, i):
        self.breaks += 1
        g, t = f"d{self.n}", self.tensor()
        return [
            f"{i}def {g}(x):",
            f"{i}    for k in range(3):",
            f"{i}        x = x * 0.5 + {t}",
            f"{i}        if x.sum() > {self.integer(-2, 2)}: x = x - 1",
            f"{i}        yield x",
            *self.bind(
                i,
                self.pick(
                    (f"sum({g}({t}))", f"list({g}({t}))[n % 3]", f"next({g}({t})) + 1", f"sum(q * 2 for q in {g}({t}))")
                ),
            ),
        ]

    def s_break_in_while(self, i):
        self.breaks += 1
        v, t, c = self.fresh(), self.tensor(), f"x{self.n}"
        self.tensors.append(v)
        return [
            f"{i}{v}, {c} = {t}, 0",
            f"{i}while {self.pick(('{v}.abs().mean() > 0.1 and {c} < 4', '{c} < 3', '({v}.sum() < 50) and {c} < 3')).format(v=v, c=c)}:",
            f"{i}    {c} += 1",
            f"{i}    {v} = {v} * 0.5",
            f"{i}    if {v}.sum() > {self.integer(-2, 2)}: {self.pick(('continue', 'break', 'pass'))}",
            f"{i}    {v} = {v} + {self.tensor()}",
            *([f"{i}else:", f"{i}    {v} = -{v}"] if self.flag() else []),
        ]

    def s_break_in_nested_loops(self, i):
        self.breaks += 1
        v, t = self.fresh(), self.tensor()
        self.tensors.append(v)
        return [
            f"{i}{v} = {t}",
            f"{i}for p{v}, q{v} in enumerate([{self.tensor()}, {self.tensor()}]):",
            f"{i}    {v} = {v} + p{v}",
            f"{i}    for r{v} in range(2):",
            f"{i}        {v} = torch.sin({v}) * q{v}",
            f"{i}        if {v}.mean() > 0: {self.pick(('break', 'continue', 'items.append(r' + v + ')', 'notes.append(n)'))}",
            f"{i}        {v} = {v} - 1",
            f"{i}    {self.pick(('else:', 'if n:'))}",
            f"{i}        {v} = {v} * 2",
        ]

    def s_break_in_finally(self, i):
        self.breaks += 1
        v, t = self.fresh(), self.tensor()
        self.tensors.append(v)
        return [
            f"{i}{v} = {t}",
            f"{i}try:",
            f"{i}    try:",
            f"{i}        {v} = {v} + 1",
            f"{i}        if n == {self.integer(0, 4)}: raise Problem('f')",
            f"{i}    finally:",
            f"{i}        {v} = torch.cos({v})",
            f"{i}        if {v}.sum() > 0: notes.append('positive')",
            f"{i}        {v} = {v} * 2",
            f"{i}except Problem:",
            f"{i}    {v} = {v} - 5",
        ]

    def s_break_in_except(self, i):
        self.breaks += 1
        v, t = self.fresh(), self.tensor()
        self.tensors.append(v)
        return [
            f"{i}{v} = {t}",
            f"{i}try:",
            f"{i}    [1][n]",
            f"{i}except IndexError as e6:",
            f"{i}    {v} = torch.tanh({v})",
            f"{i}    if {v}.sum() > 0: {v} = {v} + 1",
            f"{i}    notes.append(str(e6))",
            f"{i}    {v} = {v} * {self.tensor()}",
            *([f"{i}    if n == 4: raise"] if self.flag() else []),
        ]

    def s_break_in_match(self, i):
        self.breaks += 1
        v, t = self.fresh(), self.tensor()
        self.tensors.append(v)
        return [
            f"{i}match (n, {t}):",
            f"{i}    case (0 | 1, q) if q.sum() > 0: {v} = q + 1",
            f"{i}    case (k, q) if k > 2: {v} = branchy(q) * k",
            f"{i}    case (_, q): {v} = q",
        ]

    def s_break_in_closure(self, i):
        self.breaks += 1
        g, t = f"e{self.n}", self.tensor()
        return [
            f"{i}c{g} = {t}",
            f"{i}def {g}(x):",
            f"{i}    nonlocal c{g}",
            f"{i}    c{g} = c{g} * 0.5",
            f"{i}    if x.sum() > {self.integer(-2, 2)}: c{g} = c{g} + 1",
            f"{i}    return x + c{g}",
            *self.bind(i, f"{g}({self.tensor()}) + {g}({self.tensor()}) + c{g}"),
        ]

    def s_risky_callee(self, i):
        self.breaks += 1
        v, t = self.fresh(), self.tensor()
        self.tensors.append(v)
        return self.pick(
            (
                [
                    f"{i}{v} = {t}",
                    f"{i}try:",
                    f"{i}    {v} = risky({t}, n) + 1",
                    f"{i}except Problem as e7:",
                    f"{i}    notes.append(e7.args)",
                ],
                [f"{i}{v} = {t}", f"{i}with Quiet(notes, 'r'): {v} = risky({t}, n)"],
                [f"{i}{v} = risky({t}, n)"],
                [
                    f"{i}{v} = {t}",
                    f"{i}for k{v} in range(4):",
                    f"{i}    try: {v} = risky({v}, k{v})",
                    f"{i}    except Problem: continue",
                    f"{i}    finally: notes.append(k{v})",
                ],
            )
        )

    def s_print_tensor(self, i):
        self.breaks += 1
        return [
            f"{i}print('value', round(({self.tensor()}.detach().nan_to_num().clamp(-3, 3) > {self.integer(-2, 2)}).sum().item() / 2, 1), n)",
            f"{i}print(({self.tensor()} > 0).sum())" if self.flag() else f"{i}print(n, sep='', end=';')",
        ]

    def s_tolist(self, i):
        self.breaks += 1
        return [
            f"{i}notes.append(({self.tensor()} > 0).{self.pick(('tolist()', 'sum(0).tolist()', 'any().item()', 'float().argmax().item()'))})"
        ]

    def s_nonzero(self, i):
        self.breaks += 1
        return self.bind(
            i,
            self.pick(
                (
                    "{t}[{t} > 0].sum() + {u}",
                    "({t} > 0).nonzero().sum() + {u}",
                    "torch.unique(({t} * 2).round()).numel() + {u}",
                    "{t}.masked_select({t} > 0).numel() + {u}",
                    "torch.where({t} > 0)[0].sum() + {u}",
                    "{t}[{t}.sum(1) > 0].sum(0) + {u}",
                    "torch.argwhere({t} < 0).shape[0] * {u}",
                )
            ).format(t=self.tensor(), u=self.tensor()),
        )

    def s_numpy(self, i):
        self.breaks += 1
        return self.bind(
            i,
            self.pick(
                (
                    "torch.from_numpy({t}.detach().numpy().copy()) + {u}",
                    "torch.tensor(({t}.detach().abs() > 1).numpy().sum()) + {u}",
                    "{u} + int(({t} > 0).numpy().any())",
                )
            ).format(t=self.tensor(), u=self.tensor()),
        )

    def s_break_in_class(self, i):
        self.breaks += 1
        v, t = self.fresh(), self.tensor()
        self.tensors.append(v)
        return [
            f"{i}class B{v}(Box):",
            f"{i}    def scaled(self, k):",
            f"{i}        y = super().scaled(k)",
            f"{i}        if y.sum() > 0: self.count += 1",
            f"{i}        return y + self.count",
            f"{i}{v}o = B{v}({t})",
            f"{i}{v} = {v}o.scaled(2) + {v}o.scaled(n)",
        ]

    def s_break_in_argument(self, i):
        self.breaks += 1
        return self.bind(
            i,
            self.pick(
                (
                    "torch.where({t} > 0, {t}.sum().clamp(-2, 2).nan_to_num().item(), {u})",
                    "gather({t}, {u}, k=int({t}.sum() > 0))",
                    "({t} * (1 if {t}.sum() > 0 else 2)) + {u}",
                    "{t} + [1, 2][bool({u}.sum() > 0)]",
                    "({t}, {u})[int({t}[0, 0] > 0)] * 2",
                    "{t}[:int(({t} > 0).any()) + 1].sum(0) + {u}",
                    "dict(k={t}, m=float({u}.sum() > 0))['m'] + {t}",
                )
            ).format(t=self.tensor(), u=self.tensor()),
        )

    def s_break_in_condition(self, i):
        self.breaks += 1
        v, t, u = self.fresh(), self.tensor(), self.tensor()
        self.tensors.append(v)
        return [
            f"{i}{v} = {t}",
            f"{i}if {self.pick((f'n > 1 and {t}.sum() > 0', f'{t}.sum() > 0 or n == 3', f'not ({t} > 0).all()', f'{t}.sum() > {u}.sum()', f'0 < {t}.sum() < 5', f'torch.equal({t}, {u})', f'torch.isnan({t}).any()', f'n in ({t} > 0).sum(0)', f'torch.allclose({t}, {u})'))}:",
            f"{i}    {v} = {v} + {u}",
            *([f"{i}elif {u}.mean() > 0:", f"{i}    {v} = {v} - {u}"] if self.flag() else []),
            f"{i}{v} = {v} * 0.5",
        ]

    def s_break_in_recursion(self, i):
        self.breaks += 1
        g = f"b{self.n}"
        return [
            f"{i}def {g}(x, k):",
            f"{i}    if k <= 0 or x.sum() > {self.integer(0, 9)}: return x",
            f"{i}    y = {g}(x * 0.5, k - 1)",
            f"{i}    return y + x",
            *self.bind(i, f"{g}({self.tensor()}, n % 4)"),
        ]

    def s_return_in_loop(self, i):
        self.breaks += 1
        g, t = f"l{self.n}", self.tensor()
        return [
            f"{i}def {g}(x):",
            f"{i}    for k, q in enumerate([x, {t}]):",
            f"{i}        with Note(notes):",
            f"{i}            try:",
            f"{i}                if q.sum() > {self.integer(-2, 2)}: return q * 2, k",
            f"{i}            finally:",
            f"{i}                notes.append(k)",
            f"{i}    return x, -1",
            f"{i}{g}x, {g}k = {g}({self.tensor()})",
            f"{i}notes.append({g}k)",
            *self.bind(i, f"{g}x + {g}k"),
        ]

    def s_break_in_else(self, i):
        self.breaks += 1
        v, t = self.fresh(), self.tensor()
        self.tensors.append(v)
        return [
            f"{i}{v} = {t}",
            f"{i}for k{v} in range(n % 3):",
            f"{i}    {v} = {v} + k{v}",
            f"{i}    if k{v} == 1 and {v}.sum() > 0: break",
            f"{i}else:",
            f"{i}    {v} = torch.sin({v})",
            f"{i}    if {v}.sum() > 0: {v} = -{v}",
        ]

    def s_break_in_managed(self, i):
        self.breaks += 1
        v, t = self.fresh(), self.tensor()
        self.tensors.append(v)
        return [
            f"{i}{v} = {t}",
            f"{i}for k{v} in range(2):",
            f"{i}    with managed(notes, {v}) as m{v}:",
            f"{i}        {v} = m{v} * 0.4",
            f"{i}        notes.append(bool({v}.sum() > 0))",
            f"{i}        if k{v} == n: raise Problem(k{v})",
        ]
