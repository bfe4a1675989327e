"""A lab for other graders: nbgrader's source notebook, otter-grader's tests. Both run the tests of the built modules.

nbgrader   a cell of each exercise holds the solution between its marks; the locked cell behind it gives points, in part
           where some tests pass. `nbgrader generate_assignment` strips solutions and hidden tests.
otter      a file of tests an exercise, each test a case with points of its own, hidden or not.
"""

from __future__ import annotations

from .build import notebook
from .source import Lab

__all__ = ["nbgrader_notebook", "otter_notebook", "otter_tests"]


def nbgrader_notebook(lab: Lab, language: str) -> dict:
    """What lies in an instructor's `source/labNN/`."""
    made = notebook(lab, language, solution=True)
    sources = {c.name: c.source for c in lab.cells if c.kind == "exercise"}
    points = {e.name: e.points + e.hidden_points for e in lab.exercises}
    for cell in made["cells"]:
        facts = cell["metadata"].get("tcompile_lab", {})
        name = facts.get("name", "")
        if facts.get("kind") == "exercise":
            cell["source"] = f"# exercise: {name}\n" + _marked(sources[name])
            cell["metadata"]["nbgrader"] = _facts(f"exercise-{name}", solution=True)
        elif facts.get("kind") == "check" and name in points:
            cell["source"] = (
                f'course.check("{name}")\n### BEGIN HIDDEN TESTS\ncourse.grade("{name}")\n### END HIDDEN TESTS'
            )
            cell["metadata"]["nbgrader"] = _facts(f"tests-{name}", grade=True, points=points[name])
    return made


def _facts(name: str, solution: bool = False, grade: bool = False, points: float | None = None) -> dict:
    facts = {
        "schema_version": 3,
        "grade_id": name,
        "solution": solution,
        "grade": grade,
        "locked": grade,
        "task": False,
        "cell_type": "code",
    }
    return facts if points is None else {**facts, "points": int(points) if points == int(points) else points}


def _marked(source: str) -> str:
    """The solution between nbgrader's marks. It leaves its own stub there: a student's version of ours has no place."""
    out, student = [], False
    for line in source.splitlines():
        bare = line.strip()
        if bare in ("# BEGIN SOLUTION", "# END SOLUTION"):
            line, student = line.replace("# ", "### ", 1), False
        elif bare == "# STUDENT":
            student = True
        if not student:
            out.append(line)
    return "\n".join(out)


def otter_tests(lab: Lab) -> dict[str, str]:
    """File name -> text, for the folder `tests` beside a notebook."""
    files = {}
    for e in lab.exercises:
        parts = [
            f'"""Lab {lab.number}, exercise {e.name}: for otter-grader."""',
            "from otter.test_files import test_case\n\nfrom tcompile.labs.others import run_test",
            f"OK_FORMAT = False\nname = {e.name!r}\npoints = None",
        ]
        for t in lab.tests:
            if t.exercise == e.name:
                key = f"{'hidden' if t.hidden else 'public'}:{t.name}"
                parts.append(
                    f"@test_case(points={t.points:g}, hidden={t.hidden})\n"
                    f'def {t.name}(env):\n    run_test({lab.number}, "{key}", env)'
                )
        files[f"{e.name}.py"] = "\n\n\n".join(parts) + "\n"
    return files


def otter_notebook(lab: Lab, language: str, solution: bool) -> dict:
    """A submission for otter: its checks are otter's own."""
    made = notebook(lab, language, solution)
    made["cells"][1]["source"] += "\n\nimport otter\n\ngrader = otter.Notebook()"
    for cell in made["cells"]:
        facts = cell["metadata"].get("tcompile_lab", {})
        if facts.get("kind") == "check" and any(e.name == facts["name"] for e in lab.exercises):
            cell["source"] = f'grader.check("{facts["name"]}")'
    return made
