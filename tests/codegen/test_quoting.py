"""Text of the user's in generated text: names may be anything, and none ends a comment, a string, an element or a
line.
"""

import html.parser
import io
import json
import keyword
import os
import subprocess
import sys
import tokenize
import types

import pytest
import torch
import torch.nn as nn

import tcompile
import tcompile.kernel_magics.render  # noqa: F401  (draws reports)
from tcompile.compiler.base import quoting
from tcompile.compiler.codegen.cpp.printer import header
from tcompile.compiler.codegen.triton.printer import header_of
from tcompile.compiler.lowering.ir import Kernel
from tcompile.compiler.report import CompileReport

PAYLOAD = 'int evil = system("false");'
HOSTILE = {
    "newline": f"z\n{PAYLOAD}\n.py",
    "return": f"z\r{PAYLOAD}",
    "both": f"z\r\n{PAYLOAD}",
    "continued": "z\\",
    "continued twice": "z\\\\",
    "trigraph": "z??/",
    "trigraphs": "????/??/",
    "comment": "z*/ #error /*",
    "quotes": "z'\"'''\"\"\"`",
    "tag": "</script><script>alert(1)</script>",
    "style": "</style><img src=x onerror=1>",
    "comment of HTML": "<!--<script>",
    "CDATA": "]]>",
    "separator": f"z\u2028{PAYLOAD}",
    "paragraph": f"z\u2029{PAYLOAD}",
    "next line": f"z\x85{PAYLOAD}",
    "form feed": f"z\x0c{PAYLOAD}",
    "vertical tab": f"z\x0b{PAYLOAD}",
    "NUL": "z\0y",
    "surrogate": "z\udcff\ud800",
    "right to left": "z\u202e\u2066",
    "braces": "{x}%s%(a)s",
    "bell": "\x07\x1b[31m",
    "long": "x" * 5000,
    "empty": "",
    "letters": "ﬁ²",
    "python": "z'); __import__('os').abort(); ('",
    "entity": "&lt;b&gt;&#0;",
    "directive": "#include <x>",
    "line": 'z\n#line 1 "y"',
    "pragma": '_Pragma("GCC error")',
}
names = pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)


@names
def test_comments(name):
    text = quoting.comment(name)
    assert (
        text.splitlines() in ([text], [])
        and text.isprintable()
        and "\\" not in text
        and "??" not in text
        and "*/" not in text
    )
    text.encode()
    tokens = list(tokenize.generate_tokens(io.StringIO(f"x = 1  # {text}\n").readline))
    assert [t.string for t in tokens if t.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER)] == ["x", "=", "1"]


@names
def test_headers_of_kernels_are_comments(name):
    kernel = Kernel("k", (), [], origins=[name, "sin"], lines=[(name, 3), (f"/a/b/{name}", 4)])
    for text, mark in (
        (header(kernel, "k"), "//"),
        (header_of(kernel, "k", "//"), "//"),
        (header_of(kernel, "k"), "#"),
    ):
        assert all(line.startswith(mark) and not line.endswith("\\") for line in text.split("\n")) and len(
            text.splitlines()
        ) == len(text.split("\n"))


def test_headers_compile_to_nothing():
    """By a compiler that replaces trigraphs, too."""
    parts = [
        header(Kernel("k", (), [], origins=[n], lines=[(n, 1)]), f"k{i}") + f"\nint after_{i};"
        for i, n in enumerate(HOSTILE.values())
    ]
    for standard in ("-std=gnu++17", "-std=c++14"):
        made = subprocess.run(
            ["g++", standard, "-E", "-P", "-x", "c++", "-"],
            input="\n".join(parts),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert made.returncode == 0, made.stderr
        assert made.stdout.split() == "".join(f"int after_{i}; " for i in range(len(parts))).split()


@names
def test_names(name):
    made = quoting.identifier(name)
    assert made.isidentifier() and made.isascii() and not keyword.iskeyword(made)

    class Holder:
        pass

    if quoting.is_plain_name(name):
        exec(f"h.{name} = 1", {"h": (h := Holder())})
        assert vars(h) == {name: 1}


def test_names_that_the_parser_changes():
    assert (
        not quoting.is_plain_name("ﬁ")
        and not quoting.is_plain_name("__debug__")
        and quoting.is_plain_name("имя")
        and quoting.is_plain_name("x")
    )


@names
def test_json_and_html(name):
    assert json.loads(json.dumps(quoting.well_formed(name)).encode()) == quoting.well_formed(name)
    assert quoting.well_formed(name) == name or any("\ud800" <= c <= "\udfff" for c in name)
    script = quoting.script_json(json.dumps({name: [name]}, ensure_ascii=False))
    assert not set("<>&\u2028\u2029") & set(script) and json.loads(script) == {name: [name]}
    seen = elements(f'<p title="{quoting.html_text(name)}">{quoting.html_text(name)}</p>')
    assert seen == [("p", [("title", quoting.well_formed(name).replace("\0", "\ufffd"))])]


def elements(page):
    seen = []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag, attributes):
            seen.append((tag, attributes))

    Parser(convert_charrefs=True).feed(page)
    return seen


# --- everything at once
class Net(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.label = name.replace(".", "_") or "empty"
        self.add_module(self.label, nn.Linear(3, 3))
        self.register_buffer(self.label + "b", torch.ones(3))
        setattr(self, self.label + "plain", 2.0)
        self.given, self.noted = {name: torch.ones(3), 0: name}, {}

    def forward(self, x, **more):
        for value in more.values():
            x = x + value
        setattr(self, self.label + "seen", 3)
        self.noted[self.label] = self.label
        return torch.softmax(
            getattr(self, self.label)(x) * getattr(self, self.label + "plain") + self.given[self.given[0]], -1
        )


def renamed(fn, name):
    """The function as if its file, its name and its qualified name were `name`."""
    code = fn.__code__.replace(co_filename=name, co_name=name, co_qualname=name)
    made = types.FunctionType(code, {**fn.__globals__}, name, fn.__defaults__, fn.__closure__)
    made.__qualname__ = name
    return made


@pytest.mark.parametrize(
    "name",
    [
        n
        for k, n in HOSTILE.items()
        if k
        in (
            "newline",
            "continued",
            "comment",
            "quotes",
            "tag",
            "separator",
            "NUL",
            "surrogate",
            "letters",
            "python",
            "empty",
            "right to left",
        )
    ],
    ids=repr,
)
def test_hostile_names_compile_and_are_reported(name, tmp_path):
    torch.manual_seed(0)
    net = Net(name)
    Forward = type("Forward", (Net,), {"forward": renamed(Net.forward, name), "__qualname__": "Forward"})
    Forward.__name__ = name.replace("\0", "") if "\ud800" not in name else "F"
    net.__class__ = Forward
    x, more = torch.randn(4, 3), {name or "e": torch.ones(3)}
    want = Net.forward(net, x, **more)
    report = tcompile.explain(net)(x, **more)
    torch.testing.assert_close(report.result, want)
    assert report.graphs and not report.graph_breaks and not report.fallbacks and not report.errors
    assert net.noted[net.label] == net.label and getattr(net, net.label + "seen") == 3
    assert report.kernels
    for k in report.kernels:
        head = k.source.split("#include")[0].split("#define")[0].split("enum")[0]
        assert not any(line.strip().startswith("int evil") for line in k.source.splitlines()) and head.startswith("//")
    for kind in ("json", "html", "txt"):
        report.save(tmp_path / f"r.{kind}")
    again = CompileReport.from_json((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert again.to_dict() == report.to_dict()
    assert all(c == "\n" or c.isprintable() for c in str(report))  # a terminal obeys escape sequences
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    plain = elements(page)
    assert not any(
        tag == "script"
        and dict(a).get("type") not in ("application/json", "module")
        or any(k.startswith("on") for k, _ in a)
        for tag, a in plain
    )
    assert {tag for tag, _ in plain} <= {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "div",
        "noscript",
        "script",
        "details",
        "summary",
        "table",
        "tr",
        "td",
        "th",
        "code",
        "pre",
        "span",
        "b",
        "i",
        "img",
        "br",
        "p",
        "a",
        "small",
        "em",
        "strong",
        "thead",
        "tbody",
        "ul",
        "ol",
        "li",
        "h3",
        "h4",
    }
    assert "alert(1)</script" not in page.split('id="tcompile-report">')[0]


@pytest.mark.parametrize("name", [HOSTILE[k] for k in ("newline", "quotes", "NUL", "tag", "letters")], ids=repr)
def test_backends_of_hostile_names(name):
    def backend(gm, inputs):
        return gm.forward

    backend.__name__ = backend.__qualname__ = name
    report = tcompile.explain(lambda x: torch.sin(x) + 1, backend=backend)(torch.ones(3))
    assert report.result.tolist() == (torch.sin(torch.ones(3)) + 1).tolist()
    assert CompileReport.from_json(report.to_json()).to_dict() == report.to_dict()
    assert all(
        not dict(a).get("onerror") and tag != "script" for tag, a in elements(report._repr_mimebundle_()["text/html"])
    )


def test_a_file_whose_name_is_code(tmp_path):
    """The program of the issue: its second line was compiled, and ran when the library was loaded."""
    sentinel = tmp_path / "ran"
    name = f'z\n#include <stdlib.h>\nstatic int evil = system("touch {sentinel}");\n'
    fn = renamed(lambda x: (torch.sin(x) * 3 + 1.25).sum(), name.replace("/", "\\057"))
    compiled = tcompile.compile(fn)
    torch.testing.assert_close(compiled(torch.ones(7)), fn(torch.ones(7)))
    assert not sentinel.exists()


def test_a_process_whose_encoding_is_ascii(tmp_path):
    script = tmp_path / "имя.py"
    script.write_text(
        "import torch, tcompile\ndef f(x):\n    return torch.sin(x) * 7.125 + 2\n"
        "r = tcompile.explain(f)(torch.ones(5))\nassert not r.fallbacks, r.fallbacks\nprint('ok')\n",
        encoding="utf-8",
    )
    out = subprocess.run(
        [sys.executable, "-X", "utf8=0", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "TCOMPILE_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert out.returncode == 0 and "ok" in out.stdout, out.stderr[-2000:]


@names
def test_labels_of_a_profilers_ranges(name):
    label = name.replace("\0", "0").encode("utf-8", "replace").decode()

    def f(x):
        with torch.profiler.record_function(label):
            y = x * 2.125
        with torch.profiler.record_function("z" + label):
            return y.sin() + 1

    report = tcompile.explain(f)(torch.ones(3))
    torch.testing.assert_close(report.result, f(torch.ones(3)))
    assert report.kernels and not report.fallbacks
    assert not any(line.strip().startswith("int evil") for k in report.kernels for line in k.source.splitlines())
