"""The labs under nbgrader and otter-grader, as installed packages: `make labs-graders`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tcompile.labs.library import find

ROOT = Path(__file__).resolve().parents[2]
EXTRA = os.environ.get("TCOMPILE_LABS_GRADERS", "")
pytestmark = pytest.mark.skipif(not EXTRA, reason="make labs-graders installs both and runs it")
HALF = "# exercise: traffic\ndef traffic(report):\n    return sum(k.bytes for k in report.kernels)"


def run(folder: Path, *command: str) -> str:
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), EXTRA])
    # What is run asks PYTHONPATH last: the graders' packages must not hide this environment's.
    code = (
        "import runpy, sys; extra = sys.argv.pop(1); sys.path = [p for p in sys.path if p != extra] + [extra];"
        "module = sys.argv.pop(1); sys.argv[0] = module; runpy.run_module(module, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, EXTRA, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "HOME": str(folder), "PATH": f"{EXTRA}/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr


def answered(data: dict, answers: dict[str, str]) -> dict:
    for cell in data["cells"]:
        facts = cell["metadata"].get("tcompile_lab", {})
        if facts.get("kind") == "exercise" and facts["name"] in answers:
            cell["source"] = answers[facts["name"]]
        if facts.get("kind") == "show":
            cell["source"] = ""
    return data


def solutions() -> dict[str, str]:
    path = find(1).instructor / "solution.en.ipynb"
    cells = json.loads(path.read_text())["cells"]
    facts = [(c["metadata"].get("tcompile_lab", {}), c["source"]) for c in cells]
    return {f["name"]: text for f, text in facts if f.get("kind") == "exercise"}


def test_nbgrader_strips_and_grades(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "labs.py"), "nbgrader", str(tmp_path)], check=True)
    for other in (tmp_path / "source").iterdir():
        if other.name != "lab01":
            (other / f"{other.name}.ipynb").unlink()
            other.rmdir()
    (tmp_path / "nbgrader_config.py").write_text(
        "c = get_config()\nc.CourseDirectory.course_id = 'compilers'\nc.ExecutePreprocessor.timeout = 200\n"
    )
    run(tmp_path, "nbgrader", "generate_assignment", "lab01")
    released = (tmp_path / "release" / "lab01" / "lab01.ipynb").read_text()
    assert "k.launches for k" not in released and "course.grade" not in released
    assert "raise NotImplementedError" in released and 'course.check(\\"traffic\\")' in released
    for name, answers in (("ada", solutions()), ("bob", {"traffic": HALF})):
        folder = tmp_path / "submitted" / name / "lab01"
        folder.mkdir(parents=True)
        (folder / "lab01.ipynb").write_text(json.dumps(answered(json.loads(released), answers)))
    run(tmp_path, "nbgrader", "autograde", "lab01")
    code = (
        "from nbgrader.api import Gradebook\n"
        "with Gradebook('sqlite:///gradebook.db') as book:\n"
        "    for name in ('ada', 'bob'):\n"
        "        s = book.find_submission('lab01', name)\n"
        "        print(name, s.score, s.max_score, {g.name: g.score for n in s.notebooks for g in n.grades})\n"
    )
    (tmp_path / "scores.py").write_text(code)
    said = dict(line.split(" ", 1) for line in run(tmp_path, "scores").splitlines() if line[:3] in ("ada", "bob"))
    full = said["ada"].split()
    assert full[0] == full[1] and float(full[0]) > 0, said
    assert "'tests-traffic': 7.0" in said["bob"], said  # of 11: what fails there counts alone


def test_otter_runs_public_and_hidden_tests(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "labs.py"), "otter", str(tmp_path)], check=True)
    home = tmp_path / "lab01"
    code = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from tcompile.labs.submission import load\n"
        "from otter.nbmeta_config import NBMetadataConfig\n"
        "from otter.test_files import GradingResults, create_test_file\n"
        "for name in ('full', 'half'):\n"
        "    names = vars(load(Path(name + '.ipynb')))\n"
        "    files = []\n"
        "    for path in sorted(Path('tests').glob('*.py')):\n"
        "        file = create_test_file(str(path), NBMetadataConfig())\n"
        "        file.run(names)\n"
        "        files.append(file)\n"
        "    results = GradingResults(files)\n"
        "    print(name, results.total, results.possible, {k: r.score for k, r in results.results.items()})\n"
    )
    (home / "scores.py").write_text(code)
    plain = json.loads((home / "lab01.ipynb").read_text())
    (home / "half.ipynb").write_text(json.dumps(answered(plain, {"traffic": HALF})))
    (home / "full.ipynb").write_text(json.dumps(answered(plain, solutions())))
    said = dict(line.split(" ", 1) for line in run(home, "scores").splitlines() if line[:4] in ("full", "half"))
    full = said["full"].split()
    assert full[0] == full[1] and float(full[0]) > 0, said
    assert "'traffic': 7" in said["half"], said
