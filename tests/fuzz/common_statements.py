"""Kinds of statement that any program has: assignments, containers, branches, loops, functions, objects."""

from __future__ import annotations

from .writing import CONDITIONS, INPLACE, TENSOR_CONDITIONS, Writing


class CommonStatements(Writing):
    s_assign = Writing.assign

    def s_again(self, i):
        own = [t for t in self.tensors if t not in ("a", "b", "c")]
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
        return [
            f"{i}n = {self.pick(('n + 1', 'n * 2 % 7', 'max(n - 1, 0)', 'len(items) + n', 'abs(n - 3)', 'n // 2'))}"
        ]

    def s_unpack(self, i):
        u, v = self.fresh(), self.fresh()
        out = [
            f"{i}{u}, {v} = {self.pick(('({0}, {1})', '[{0}, {1} * n]', '{0}.chunk(1)[0], {1}', 'torch.unbind(torch.stack([{0}, {1}]))'))}".format(
                self.tensor(), self.tensor()
            )
        ]
        self.tensors += [u, v]
        return out

    def s_global(self, i):
        return [f"{i}STATE['calls'] = STATE.get('calls', 0) + 1"]

    def s_format(self, i):
        return [f'{i}notes.append(f"{{n}}:{{{self.tensor()}.shape[0]}}")']

    def s_if(self, i):
        self.depth += 1
        c = self.pick(CONDITIONS).format(self.tensor())
        v = self.fresh()
        out = [
            f"{i}{v} = {self.tensor()}",
            f"{i}if {c}:",
            *self.block(2, i + "    "),
            f"{i}    {v} = {self.expression()}",
            f"{i}else:",
            f"{i}    {v} = {self.expression()}",
        ]
        self.depth -= 1
        self.tensors.append(v)
        return out

    def s_tensor_if(self, i):
        self.depth += 1
        self.breaks += 1
        c = self.pick(TENSOR_CONDITIONS).format(self.tensor())
        v = self.fresh()
        out = [
            f"{i}{v} = {self.tensor()}",
            f"{i}if {c}:",
            *self.block(2, i + "    "),
            f"{i}    {v} = {self.expression()}",
        ]
        if self.flag():
            out += [f"{i}else:", f"{i}    {v} = {self.expression()}"]
        self.depth -= 1
        self.tensors.append(v)
        return out

    def s_item(self, i):
        self.breaks += 1
        v = self.fresh()
        out = [
            f"{i}s{self.n} = {self.tensor()}.mean().item()",
            f"{i}{v} = {self.tensor()} + max(min(s{self.n}, 2.0), -2.0)",
        ]
        self.tensors.append(v)
        return out

    def s_print(self, i):
        self.breaks += 1
        return [f"{i}print('seen', round(float({self.tensor()}.abs().clamp(max=9).sum()), 2))"]

    def s_for(self, i):
        self.depth += 1
        v, k = self.fresh(), f"k{self.n}"
        it = self.pick(
            ("range(n % 4)", "range(3)", "enumerate([1, 2])", "zip([1, 2, 3], 'ab')", "[2, 1]", "list(items)[:2]")
        )
        target = k if not it.startswith(("enumerate", "zip")) else f"{k}, _"
        e = self.expression()
        out = [
            f"{i}{v} = {self.tensor()}",
            f"{i}for {target} in {it}:",
            f"{i}    {v} = {v} * 0.5 + {e}",
            *self.block(2, i + "    "),
        ]
        if self.flag():
            out.append(f"{i}    if n == {self.integer(0, 4)}: {self.pick(('break', 'continue'))}")
        self.depth -= 1
        self.tensors.append(v)
        return out

    def s_loop_break(self, i):
        self.depth += 1
        self.breaks += 1
        v = self.fresh()
        out = [
            f"{i}{v} = {self.tensor()}",
            f"{i}for j{self.n} in range(3):",
            f"{i}    {v} = {v} * 0.7 + {self.tensor()}",
            f"{i}    if {v}.sum() > {self.integer(-3, 3)}:",
            f"{i}        {v} = {v} - 1",
            f"{i}    {v} = torch.sin({v})",
        ]
        self.depth -= 1
        self.tensors.append(v)
        return out

    def s_while(self, i):
        v, c = self.fresh(), f"w{self.n}"
        out = [
            f"{i}{v} = {self.tensor()}",
            f"{i}{c} = n % 3",
            f"{i}while {c} > 0:",
            f"{i}    {v} = torch.cos({v}) + {self.tensor()}",
            f"{i}    {c} -= 1",
        ]
        self.tensors.append(v)
        return out

    def s_closure(self, i):
        self.depth += 1
        g, v, t = f"g{self.n}", self.fresh(), self.tensor()
        nonlocal_ = self.flag()
        out = [f"{i}c{g} = {self.integer(0, 3)}", f"{i}def {g}(x, k=2):"]
        if nonlocal_:
            out += [f"{i}    nonlocal c{g}", f"{i}    c{g} += k"]
        out += [f"{i}    return x * c{g} + {t}", f"{i}{v} = {g}({self.tensor()}) + {g}({self.tensor()}, k=1)"]
        self.depth -= 1
        self.tensors.append(v)
        return out

    def s_inside(self, i):
        """A function with statements of its own, called by another one: what breaks in it is several calls deep."""
        self.depth += 1
        g, v, saved = f"in{self.n}", self.fresh(), self.tensors
        self.tensors = ["x", "a", "b", "c"]
        out = [
            f"{i}def {g}(x, n):",
            f"{i}    nonlocal a, b, c",
            *self.block(4, i + "    "),
            f"{i}    return {self.expression()}, n",
        ]
        out += [
            f"{i}def {g}h(x, n):",
            *(
                f"{i}    {line}"
                for line in self.pick(
                    (
                        (f"y, n = {g}(x * 0.5, n)", "return y + 1, n"),
                        (f"y = torch.sin({g}(x, n)[0]) * x", "return y, n"),
                        (f"return {g}(x, n + 1)",),
                        (
                            "try:",
                            f"    y, n = {g}(x + 1, n)",
                            "    notes.append(n)",
                            "except Problem:",
                            "    y = x * 3",
                            "finally:",
                            "    notes.append('inside')",
                            "return y - 1, n",
                        ),
                        (
                            "y = x * 0",
                            f"with {self.pick(('torch.no_grad()', 'region()'))}: y = {g}(x, n)[0] + y",
                            "return y * 2, n",
                        ),
                    )
                )
            ),
        ]
        self.tensors = [*saved, v]
        self.depth -= 1
        return [*out, f"{i}{v}, _n = {g}h({self.pick(saved)}, n)"]

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
        out = [
            f"{i}with {self.pick(('torch.no_grad()', 'Note(notes)', 'torch.enable_grad()', 'region()'))}:",
            f"{i}    {v} = {self.expression()}",
        ]
        self.tensors.append(v)
        return out

    def s_try(self, i):
        self.depth += 1
        v = self.fresh()
        what = self.pick(("[1][n]", "{}[n % 2]", "int('x' * (n % 2) + '1')", "1 // (n % 2)", "dict(a=1)['ab'[n % 2]]"))
        out = [
            f"{i}{v} = {self.tensor()}",
            f"{i}try:",
            f"{i}    {v} = {self.expression()}",
            f"{i}    q = {what}",
            f"{i}    {v} = {v} + 1",
            f"{i}except (IndexError, KeyError, ValueError, ZeroDivisionError) as err:",
            f"{i}    notes.append(type(err).__name__)",
            f"{i}    {v} = {v} - 1",
        ]
        if self.flag():
            out += [f"{i}finally:", f"{i}    notes.append('done')"]
        self.depth -= 1
        self.tensors.append(v)
        return out

    def s_property(self, i):
        o = f"p{self.n}"
        return [
            f"{i}{o} = Shape({self.tensor()}, n)",
            *self.bind(i, f"{o}.double + {o}.half * {o}.k"),
            f"{i}{o}.k = {self.integer(0, 3)}",
            *self.bind(i, f"{o}.double - len({o}) + {o}[n % 2]"),
        ]

    def s_arguments(self, i):
        """Containers that the caller sees are changed."""
        return [
            i
            + self.pick(
                (
                    "box['list'].append(n)",
                    "box['list'].insert(0, {t})",
                    "box[n] = {t}",
                    "box['list'].extend([1, {t}])",
                    "box.setdefault('k', []).append(n)",
                    "box['list'].reverse()",
                    "box.update(last={t}, n=n)",
                    "box['d'] = box.get('d', 0) + 1",
                    "box['list'] += [n]",
                    "box['list'][:1] = [n, n]",
                    "box.pop('last', None)",
                    "box['t'] = box.get('t', {t}) * 0.5",
                )
            ).format(t=self.tensor())
        ]

    def s_variadic(self, i):
        a, b = self.tensor(), self.tensor()
        return self.bind(
            i,
            self.pick(
                (
                    f"gather({a}, {b}, k=n)",
                    f"gather(*[{a}, {b}], **{{'k': 2}})",
                    f"gather({a}, last={b})",
                    f"gather(*({a},) * (n % 3 + 1), k=1, last={b})",
                )
            ),
        )

    def s_defaults(self, i):
        g, t = f"h{self.n}", self.tensor()
        return [
            f"{i}def {g}(x, y=n, *rest, z={t}, **more):",
            f"{i}    def inner(w=y): return w + len(rest) + sum(more.values())",
            f"{i}    return x * inner() + z",
            *self.bind(
                i,
                self.pick(
                    (
                        f"{g}({self.tensor()})",
                        f"{g}({self.tensor()}, 2, 3, 4, q=n)",
                        f"{g}({self.tensor()}, z={self.tensor()}, w=1.5)",
                    )
                ),
            ),
        ]

    def s_record(self, i):
        kind, t = self.pick(("Pair", "Data")), self.tensor()
        v = self.fresh()
        self.tensors.append(v)
        return [f"{i}{v}_ = {kind}({t}, n)", f"{i}{v} = {v}_.x * {v}_.k", f"{i}extra.append({v}_)"]

    def s_slices(self, i):
        return self.bind(
            i,
            self.pick(
                (
                    "{t}[n % 4] + {t}",
                    "{t}[:n % 4 + 1].sum(0) + {t}",
                    "{t}[-(n % 4) - 1] * {t}",
                    "{t}[::n % 2 + 1].sum(0) + {t}",
                    "{t}[..., n % 3, None] + {t}",
                    "torch.cat([{t}[n % 4:], {t}[:n % 4]])",
                    "{t}[slice(0, n % 4)].sum() + {t}",
                    "{t}[range(4)[n % 4]] + {t}",
                    "{t}[[0, n % 4]].sum(0) + {t}",
                    "{t}[{t} > 0.2].sum() + {t}",
                    "{t}[torch.tensor([0, n % 4])].sum(0) + {t}",
                    "{t}.narrow(0, n % 3, 2).sum(0) + {t}",
                    "{t}.select(1, n % 3)[:, None] + {t}",
                )
            ).format(t=self.tensor()),
        )

    def s_attributes(self, i):
        t = self.tensor()
        return [
            f"{i}notes.append(({t}.shape, {t}.dtype, {t}.ndim, {t}.device.type, {t}.requires_grad, {t}.is_contiguous(), {t}.stride(), {t}.numel(), {t}.element_size()))"
        ] + (self.bind(i, f"{t}.T.T + {t}.size(0) * {t}.mT.shape[-1]") if self.flag() else [])

    def s_view_of_input(self, i):
        v = self.fresh()
        self.tensors.append("a")
        return [
            f"{i}{v}_ = {self.pick(('a', 'b', 'c'))}{self.pick(('[1:3]', '.t()', '.view(-1)', '[:, ::2]', '[n % 4]', '.unsqueeze(0)', '.detach()'))}",
            f"{i}{v}_{self.pick(('.add_(0.25)', '.mul_(0.5)', '.zero_()', '.copy_({v}_ * 2)', '[0] = n', '.clamp_(-1, 1)', '.sub_({v}_)', '.fill_(n)')).format(v=v)}",
            *self.bind(i, "c * 1"),
        ]

    def s_alias(self, i):
        u, v, t = self.fresh(), self.fresh(), self.tensor_of(("a", "b", "c"))
        self.tensors += [u, v]
        return [
            f"{i}{u} = {t} + 0",
            f"{i}{v} = {u}",
            f"{i}{v}{self.pick(('.add_(1)', '[1:].mul_(2)', '.t().sub_(1)'))}",
            f"{i}extra.append({u} is {v})",
        ]

    def tensor_of(self, names):
        return self.pick([*names, self.tensor()])

    def s_dtypes(self, i):
        return self.bind(
            i,
            self.pick(
                (
                    "({t} * 3).int() // 2 + {t}",
                    "({t} > 0).sum(0) + {t}",
                    "({t}.bfloat16() * 2).float()",
                    "{t}.half().float()",
                    "(({t} > 0) & ({t} < 1)).float() - {t}",
                    "({t} * 10).long() % 3 + {t}",
                    "torch.arange(3) * {t}",
                    "{t}.to(torch.float64).sum(0).float() + {t}",
                    "{t}.bool().logical_not().float() + {t}",
                    "({t} * 4).to(torch.uint8).float() if n < 0 else {t}",
                    "torch.bitwise_xor(({t} * 8).int(), n).float() + {t}",
                    "{t}.argmax(1, keepdim=True) + {t}",
                    "({t} > 0.1).any(0) * {t}",
                    "({t}.int() << 1) + {t}",
                    "{t}.int() / 2 + {t}",
                    "{t} + True",
                    "{t} * (n > 2)",
                    "torch.where({t} > 0, n, 1.5) + {t}",
                )
            ).format(t=self.tensor()),
        )

    def s_empty(self, i):
        return self.bind(
            i,
            self.pick(
                (
                    "{t}[:0].sum() + {t}",
                    "{t}[:0].sum(0) + {t}",
                    "torch.cat([{t}, {t}[:0]])",
                    "{t}[:1] + {t}",
                    "{t}[:, :1] * {t}",
                    "{t}[:0].numel() + {t}",
                    "{t}[None].expand(2, 4, 3)[0] + {t}",
                    "{t}[:0].prod() * {t}",
                    "{t}.unsqueeze(1).squeeze() + {t}",
                    "torch.zeros(0).sum() + {t}",
                    "{t}.new_zeros(1, 1) + {t}",
                    "({t}[:0] * 2).view(-1, 3).mean(1).sum() + {t}",
                )
            ).format(t=self.tensor()),
        )

    def s_finally(self, i):
        self.depth += 1
        v = self.fresh()
        out = [
            f"{i}{v} = {self.tensor()}",
            f"{i}try:",
            f"{i}    {v} = {self.expression()}",
            f"{i}    if n == {self.integer(0, 4)}:",
            f"{i}        raise Problem(n)",
            f"{i}    {v} = {v} * 2",
            f"{i}except Problem as p:",
            f"{i}    {v} = {v} + p.args[0]",
            f"{i}else:",
            f"{i}    {v} = {v} - 3",
            f"{i}finally:",
            f"{i}    STATE['last'] = n",
        ]
        self.depth -= 1
        self.tensors.append(v)
        return out

    def s_raise_after(self, i):
        """The program itself fails for one n: what happened before stays."""
        self.breaks += 1
        return [
            f"{i}if n == {self.integer(0, 4)}:",
            f"{i}    box['list'].append('raised')",
            f"{i}    {self.pick(('a', 'b'))}.mul_(2)",
            f"{i}    raise Problem('stop', n)",
        ]

    def s_early(self, i):
        self.breaks += 1
        return [
            f"{i}if {self.pick(('n == 1', 'n == 4', '{t}.sum() > 3', 'len(items) > 3')).format(t=self.tensor())}:",
            f"{i}    return {self.expression()}, n",
        ]

    def s_while_else(self, i):
        t, v, c = self.tensor(), self.fresh(), f"w{self.n}"
        self.tensors.append(v)
        return [
            f"{i}{v}, {c} = {t}, 0",
            f"{i}while {c} < 3:",
            f"{i}    {c} += 1",
            f"{i}    {v} = {v} + {self.tensor()}",
            f"{i}    if {c} == n: break",
            f"{i}else:",
            f"{i}    {v} = {v} * -1",
        ]

    def s_sorted(self, i):
        return [
            f"{i}notes.append(sorted([3, n, 1], key=lambda q: -q))",
            *self.bind(i, f"sorted([(2, {self.tensor()}), (n, {self.tensor()})], key=lambda q: q[0])[0][1] + 0"),
        ]

    def s_words(self, i):
        return [
            i
            + self.pick(
                (
                    "notes.append(f'{n:>4}|{n!r}|{n / 2:.2f}')",
                    "notes.append('%d-%s' % (n, a.dtype))",
                    "notes.append('{} {k}'.format(n, k=tuple(a.shape)))",
                    "notes.append(','.join(str(q) for q in b.shape))",
                    "notes.append(str(n).zfill(3)[::-1].split('0'))",
                )
            )
        ]

    def s_walrus(self, i):
        return self.bind(i, f"{self.tensor()} + (m := n * 2 + 1) + m")

    def s_match(self, i):
        e, subject, t, u, w = (
            self.expression(),
            self.pick(("n", "(n, len(items))", "dict(k=n)")),
            self.tensor(),
            self.tensor(),
            self.tensor(),
        )
        v = self.fresh()
        self.tensors.append(v)
        return [
            f"{i}match {subject}:",
            f"{i}    case 3 | (3, _) | {{'k': 3}}: {v} = {t} + 3",
            f"{i}    case int(q) if q > 3: {v} = {u} * q",
            f"{i}    case (q, 1): {v} = {w} - q",
            f"{i}    case _: {v} = {e}",
        ]

    def s_yield(self, i):
        return self.bind(
            i,
            self.pick(
                (
                    f"sum(steps({self.tensor()}, n % 3), {self.tensor()})",
                    f"next(steps({self.tensor()}, 2)) + {self.tensor()}",
                    f"torch.stack([*steps({self.tensor()}, 2)]).sum(0)",
                    f"max((q for q in steps({self.tensor()}, 2)), key=lambda q: q.shape[0])",
                )
            ),
        )

    def s_counter(self, i):
        return [f"{i}bump(n)", *self.bind(i, f"{self.tensor()} + COUNT")]

    def s_inherit(self, i):
        return self.bind(i, f"Child({self.tensor()}).scaled({self.pick(('2', 'n'))}) + Child.kind({self.tensor()})")

    def s_detach(self, i):
        return self.bind(
            i,
            self.pick(
                (
                    "{t}.detach() + {u}",
                    "{t}.clone().detach_().mul_(2)",
                    "{t}.data * 2",
                    "torch.no_grad()(lambda q: q * 2)({t})",
                )
            ).format(t=self.tensor(), u=self.tensor()),
        )

    def s_partial(self, i):
        return self.bind(
            i,
            self.pick(
                (
                    "functools.partial(torch.add, {t})({u})",
                    "functools.reduce(lambda p, q: p + q, [{t}, {u}, {t}])",
                    "list(map(torch.sin, [{t}, {u}]))[n % 2]",
                    "dict(zip('ab', ({t}, {u})))['ab'[n % 2]] + 0",
                    "[*itertools.chain([{t}], [{u}])][-1] * 2",
                    "operator.itemgetter(n % 2)([{t}, {u}]) - 1",
                    "sum(q * w for q, w in zip([{t}, {u}], [1, n]))",
                    "{{k: v for k, v in enumerate([{t}, {u}])}}[1] + 1",
                )
            ).format(t=self.tensor(), u=self.tensor()),
        )

    def s_nested(self, i):
        v, t = self.fresh(), self.tensor()
        self.tensors.append(v)
        return [f"{i}({v}, *_z), _y = ({t}, 1, 2), n", f"{i}{v} = {v} + len(_z) + _y"]
