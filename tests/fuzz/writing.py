"""What every writer of statements stands on: its choices, the tensor variables in reach, and expressions of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from .choices import Choices

UNARY = (
    "torch.sin({})",
    "torch.tanh({})",
    "{}.abs()",
    "torch.sigmoid({})",
    "-{}",
    "torch.relu({})",
    "{}.exp().clamp(max=50.0)",
    "{}.float()",
    "torch.nn.functional.gelu({})",
    "({} > 0).float()",
    "torch.nan_to_num({})",
    "{} * 2 + 1",
    "torch.softmax({}, -1)",
    "torch.where({0} > 0.5, {0}, -{0})",
    "{0} - {0}.mean()",
    "{0} / (1 + {0}.abs().sum(-1, keepdim=True))",
    "{}.double().float()",
    "torch.nn.functional.layer_norm({}, (3,))",
    "{}.cumsum(0)",
    "{}.clone()",
    "{}.contiguous()",
    "{}.flip(0)",
    "{}.sort(0).values",
)
BINARY = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "torch.maximum({}, {})",
    "torch.where({0} > {1}, {0}, {1})",
    "{} / (2 + {}.abs())",
    "torch.stack([{}, {}]).sum(0)",
    "torch.cat([{}, {}])[:4]",
    "{0} @ {1}.t() @ {0} * 0.1",
    "torch.lerp({}, {}, 0.3)",
    "torch.addcmul({0}, {1}, {0})",
)
VIEWS = (
    "{}.t().t()",
    "{}.view(3, 4).reshape(4, 3)",
    "{}[:, :]",
    "{}.unsqueeze(0).squeeze(0)",
    "{}.transpose(0, 1).contiguous().transpose(0, 1)",
    "{}.expand(4, 3)",
    "{}.view(-1).view(4, 3)",
    "{}.permute(1, 0).permute(1, 0)",
    "{}[[3, 2, 1, 0]]",
)
INPLACE = (
    "{}.add_(1)",
    "{}.mul_(0.5)",
    "{}[0] = 1.5",
    "{}[:, 1] += 2",
    "{}[n % 4].zero_()",
    "{}.view(-1)[2:5].add_(1)",
    "{}.t()[0].mul_(2)",
    "{}.clamp_(-2, 2)",
    "{} += 1",
    "{}.relu_()",
)
CONDITIONS = (
    "n > 2",
    "n % 2 == 0",
    "{}.shape[0] == 4",
    "{}.dim() > 1",
    "len(items) > 1",
    "n in (1, 3)",
    "isinstance(n, int)",
    "not items",
)
TENSOR_CONDITIONS = ("{}.sum() > 0", "({} > 0).any()", "bool(({} < 1).all())", "{}.mean().item() > 0.1")


@dataclass
class Writing:
    choices: Choices
    tensors: list = field(default_factory=lambda: ["a", "b", "c"])
    n: int = 0
    breaks: int = 0
    depth: int = 0

    def pick(self, xs):
        return self.choices.pick(tuple(xs))

    def integer(self, low, high):
        return self.choices.integer(low, high)

    def flag(self):
        return self.choices.flag()

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
        for _ in range(self.integer(1, size)):
            lines += self.statement(indent)
        self.tensors = saved
        return lines

    def assign(self, indent):
        e, v = self.expression(), self.fresh()
        self.tensors.append(v)
        return [f"{indent}{v} = {e}"]

    def bind(self, i, expression):
        """A new tensor variable; the expression was written before it exists."""
        v = self.fresh()
        self.tensors.append(v)
        return [f"{i}{v} = {expression}"]

    def statement(self, indent):
        """The lines of one statement of any kind (programs.py)."""
        raise NotImplementedError
