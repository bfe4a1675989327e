"""A lab's source: a folder with `lab.py` (code, in the percent format) and its texts, `en.md` and `zh.md`.

notebooks/labs/AUTHORING.md says how one is written. What is wrong with a source is said with file and line.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["LANGUAGES", "Cell", "Exercise", "Lab", "LabError", "Test", "find_labs", "read_lab", "student_code"]

LANGUAGES = ("en", "zh")
KINDS = ("text", "given", "show", "exercise", "test", "hidden", "tests", "score", "speed")
_HEADER = re.compile(r"^# (\w+): *(.*?) *$")
_CELL = re.compile(r"^# %%(.*)$")
_SECTION = re.compile(r"^## (?:(exercise|hint|look) )?([a-z][a-z0-9_-]*) *$")
_FENCE = re.compile(r"^(```|~~~)")
_OWN_LINE = re.compile(r"^ *([-*+] |>|\||#|\d+[.)] )")
BEGIN, STUDENT, END = "# BEGIN SOLUTION", "# STUDENT", "# END SOLUTION"


class LabError(Exception):
    """A lab's source breaks a rule of AUTHORING.md. The text names file and line."""


@dataclass
class Cell:
    kind: str
    name: str
    source: str
    line: int  # of its mark in lab.py
    options: dict[str, str] = field(default_factory=dict)


@dataclass
class Test:
    name: str  # of the function
    exercise: str
    points: float
    hidden: bool
    source: str
    seconds: float


@dataclass
class Exercise:
    name: str
    points: float = 0.0
    hidden_points: float = 0.0
    challenge: bool = False


@dataclass
class Lab:
    number: int
    name: str
    minutes: int
    stage: str
    folder: Path
    cells: list[Cell]
    exercises: list[Exercise]
    tests: list[Test]
    helpers: str  # what the tests share
    score: str  # source of `def score(lab)`; empty where the lab has no challenge
    speed: str  # source of `def speed(lab)`, what the scoreboard times; may be empty
    title: dict[str, str] = field(default_factory=dict)
    texts: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # language -> "kind name" -> texts in order


def find_labs(root: Path) -> list[Path]:
    """The labs' folders below `root`, in order."""
    return sorted(p.parent for p in root.glob("[0-9][0-9]_*/lab.py"))


def read_lab(folder: Path) -> Lab:
    path = folder / "lab.py"
    facts, cells = _read_code(path)
    for name in ("lab", "name", "minutes"):
        if name not in facts:
            raise LabError(f"{path}:1: the header lacks `# {name}: ...`")
    known = set()
    for c in cells:
        if c.kind in ("exercise", "given", "show"):
            if (c.kind, c.name) in known:
                raise LabError(f"{path}:{c.line}: a second cell `{c.kind}: {c.name}`")
            known.add((c.kind, c.name))
    exercises = {c.name: Exercise(c.name, challenge="challenge" in c.options) for c in cells if c.kind == "exercise"}
    tests: list[Test] = []
    for c in cells:
        if c.kind in ("test", "hidden"):
            if c.name not in exercises:
                raise LabError(f"{path}:{c.line}: a test of {c.name!r}, which is not an exercise of this lab")
            tests += _tests_of(path, c)
    if len({t.name for t in tests}) < len(tests):
        raise LabError(f"{path}: two tests have one name")
    for t in tests:
        e = exercises[t.exercise]
        if t.hidden:
            e.hidden_points += t.points
        else:
            e.points += t.points
    for e in exercises.values():
        for hidden in (False, True):
            if not any(t.exercise == e.name and t.hidden is hidden for t in tests):
                raise LabError(f"{path}: exercise {e.name!r} has no {'hidden' if hidden else 'public'} test")
    score, speed = (next((c.source for c in cells if c.kind == kind), "") for kind in ("score", "speed"))
    lab = Lab(
        int(facts["lab"]),
        facts["name"],
        int(facts["minutes"]),
        facts.get("stage", ""),
        folder,
        cells,
        list(exercises.values()),
        tests,
        "\n\n".join(c.source for c in cells if c.kind == "tests"),
        score,
        speed,
    )
    for language in LANGUAGES:
        lab.title[language], lab.texts[language] = _read_texts(folder / f"{language}.md")
    _check(lab, path)
    return lab


def _read_code(path: Path) -> tuple[dict[str, str], list[Cell]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    facts: dict[str, str] = {}
    cells: list[Cell] = []
    body: list[str] = []

    def close() -> None:
        if cells:
            cells[-1].source = "\n".join(body).strip("\n")
        body.clear()

    for number, text in enumerate(lines, 1):
        mark = _CELL.match(text)
        if mark:
            close()
            cells.append(_cell_of(path, number, mark[1].strip()))
        elif not cells:
            fact = _HEADER.match(text)
            if fact:
                facts[fact[1]] = fact[2]
        else:
            body.append(text)
    close()
    return facts, cells


def _cell_of(path: Path, line: int, text: str) -> Cell:
    words = text.split()
    if not words:
        return Cell("given", f"line{line}", "", line)
    kind = words.pop(0).rstrip(":")
    if kind not in KINDS:
        raise LabError(f"{path}:{line}: a cell of unknown kind {kind!r}; kinds are {', '.join(KINDS)}")
    name = words.pop(0) if words and "=" not in words[0] else f"{kind}{line}"
    options = dict(word.partition("=")[::2] for word in words)
    return Cell(kind, name, "", line, options)


def _tests_of(path: Path, cell: Cell) -> list[Test]:
    """The functions test_... of a cell, each worth the cell's points."""
    try:
        tree = ast.parse(cell.source)
    except SyntaxError as e:
        raise LabError(f"{path}:{cell.line + (e.lineno or 0)}: {e.msg}") from None
    lines = cell.source.splitlines()
    found = []
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            raise LabError(f"{path}:{cell.line + node.lineno}: a cell of tests holds functions test_...(lab) alone")
        if [a.arg for a in node.args.args] != ["lab"]:
            raise LabError(f"{path}:{cell.line + node.lineno}: {node.name} takes one argument, lab")
        source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        try:
            points, seconds = float(cell.options.get("points", "1")), float(cell.options.get("seconds", "30"))
        except ValueError:
            raise LabError(f"{path}:{cell.line}: points= and seconds= are numbers") from None
        found.append(Test(node.name, cell.name, points, cell.kind == "hidden", source, seconds))
    if not found:
        raise LabError(f"{path}:{cell.line}: a cell of tests without a test")
    return found


def student_code(source: str, solution: bool = False, where: str = "") -> str:
    """An exercise's cell for students (the solution left out, what stands behind `# STUDENT` put in its place), or with
    its solution."""
    out: list[str] = []
    state, found, indent = "", False, ""
    stub: list[str] = []
    for text in source.splitlines():
        bare = text.strip()
        if bare == BEGIN:
            if state:
                raise LabError(f"{where}: {BEGIN} inside of a solution")
            state, found, stub = "solution", True, []
            indent = text[: len(text) - len(text.lstrip())]
        elif bare == STUDENT and state == "solution":
            state = "student"
        elif bare == END:
            if not state:
                raise LabError(f"{where}: {END} without {BEGIN}")
            if not solution:
                out += stub or [f'{indent}raise NotImplementedError("your code here")']
            state = ""
        elif state == "student":
            if not bare.startswith("#"):
                raise LabError(f"{where}: behind {STUDENT} stand comments alone, got {bare!r}")
            stub.append((indent + text[len(indent) :].removeprefix("# ").removeprefix("#")).rstrip())
        elif state == "solution":
            if solution:
                out.append(text)
        else:
            out.append(text)
    if state:
        raise LabError(f"{where}: a solution without {END}")
    if not found:
        raise LabError(f"{where}: an exercise without {BEGIN} ... {END}")
    return "\n".join(out)


def _read_texts(path: Path) -> tuple[str, dict[str, list[str]]]:
    """The title, and the sections by "kind name". A heading `## word` alone is a text of that name."""
    if not path.exists():
        raise LabError(f"{path} is missing")
    title, key, fenced = "", "", False
    sections: dict[str, list[str]] = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fenced ^= bool(_FENCE.match(text))
        if not fenced and text.startswith("# ") and not title:
            title = text[2:].strip()
            continue
        section = None if fenced else _SECTION.match(text)
        if section:
            key = f"{section[1] or 'text'} {section[2]}"
            sections.setdefault(key, []).append("")
        elif key:
            sections[key][-1] += text + "\n"
        elif text.strip():
            raise LabError(f"{path}:{number}: text before the first `## ...`")
    if not title:
        raise LabError(f"{path}:1: no title (`# ...`)")
    return title, {k: [_unwrapped(t.strip()) for t in v] for k, v in sections.items()}


def _unwrapped(text: str) -> str:
    """Each paragraph and each point of a list as one line: messages, and Chinese, want none of a source's line ends."""
    out: list[str] = []
    fenced = open_ended = False
    for line in text.splitlines():
        fence = bool(_FENCE.match(line.strip()))
        if open_ended and line.strip() and not fenced and not fence and not _OWN_LINE.match(line):
            end, begin = out[-1][-1], line.lstrip()[0]
            together = unicodedata.east_asian_width(end) in "WF" and unicodedata.east_asian_width(begin) in "WF"
            out[-1] += ("" if together else " ") + line.strip()
        else:
            out.append(line.rstrip())
        fenced ^= fence
        open_ended = not fenced and not fence and bool(line.strip()) and not line.startswith(("#", "|"))
    return "\n".join(out)


def _check(lab: Lab, path: Path) -> None:
    wanted = [f"text {c.name}" for c in lab.cells if c.kind == "text"]
    wanted += [f"exercise {e.name}" for e in lab.exercises]
    for e in lab.exercises:
        if not lab.texts["en"].get(f"hint {e.name}"):
            raise LabError(f"{lab.folder / 'en.md'}: exercise {e.name!r} has no hint (`## hint {e.name}`)")
    code = lab.helpers + "".join(t.source for t in lab.tests)
    wanted += [f"look {name}" for name in re.findall(r"look=\"([\w-]+)\"", code)]
    for language in LANGUAGES:
        for key in dict.fromkeys(wanted):
            if not lab.texts[language].get(key):
                raise LabError(f"{lab.folder / language}.md: lacks the section `## {key}`")
    here, other = lab.texts["en"], lab.texts["zh"]
    for key in here.keys() | other.keys():
        if len(here.get(key, [])) != len(other.get(key, [])):
            raise LabError(f"{lab.folder}: en.md and zh.md differ in the number of sections `## {key}`")
    unused = [k for k in here if k.split()[0] in ("text", "exercise") and k not in (*wanted, "text end")]
    if unused:
        raise LabError(f"{lab.folder / 'en.md'}: no cell of lab.py asks for `## {unused[0]}`")
    for c in lab.cells:
        if c.kind == "exercise":
            for solution in (False, True):
                text = student_code(c.source, solution, f"{path}:{c.line} ({c.name})")
                try:
                    ast.parse(text)
                except SyntaxError as e:
                    which = "solution's" if solution else "student's"
                    raise LabError(f"{path}:{c.line} ({c.name}): the {which} version: {e.msg}: {e.text}") from None
        elif BEGIN in c.source:
            raise LabError(f"{path}:{c.line}: a solution stands in an exercise's cell alone")
