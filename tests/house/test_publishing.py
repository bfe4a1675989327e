"""What the world sees of the project: workflows, issue forms, the licences of bundled JavaScript, versions."""

import hashlib
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from ..scripts import script

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(p for p in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if p.name != "config.yml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BUILT = ROOT / "extension" / "labextension"
yaml = pytest.importorskip("yaml")


def load(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def pythons():
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", c) for c in PROJECT["project"]["classifiers"]]
    return [m[1] for m in found if m]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_a_workflow_calls_make_targets_and_may_only_read(path):
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        words = re.sub(r"\$\{\{[^}]*\}\}", "VALUE", command).split()
        assert words[0] == "make" and words[1] in targets and len(words) <= 3, command
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())


# What a runner would refuse, or silently pass over: names that it does not know, and values that nothing sets.
KNOWN = {
    "workflow": {"name", True, "permissions", "concurrency", "jobs"},  # (YAML reads `on` as true)
    "job": {"name", "runs-on", "timeout-minutes", "strategy", "steps", "needs"},
    "step": {"uses", "with", "run", "name"},
}
EVENTS = {"push", "pull_request", "workflow_dispatch"}
ACTIONS = {
    "actions/checkout@v4": set(),
    "actions/setup-python@v5": {"python-version"},
    "actions/upload-artifact@v4": {"name", "path"},
}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_a_runner_knows_all_that_a_workflow_says(path):
    workflow = load(path)
    assert set(workflow) <= KNOWN["workflow"] and set(workflow[True]) <= EVENTS
    for job in workflow["jobs"].values():
        assert set(job) <= KNOWN["job"] and job["runs-on"].startswith("ubuntu-")
        matrix = set(job.get("strategy", {}).get("matrix", {}))
        assert set(re.findall(r"\$\{\{ matrix\.(\w+) \}\}", json.dumps(job))) == matrix
        assert job["steps"][0] == {"uses": "actions/checkout@v4"}
        for step in job["steps"]:
            assert set(step) <= KNOWN["step"] and ("uses" in step) != ("run" in step)
            assert "run" in step or set(step.get("with", {})) <= ACTIONS[step["uses"]]
    others = re.findall(r"\$\{\{ ((?!matrix\.)[^}]*) \}\}", path.read_text(encoding="utf-8"))
    assert set(others) <= {"github.ref"}


def test_the_course_is_tested_whole():
    steps = load(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["labs"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["make labs", "make labs-graders"]


def test_the_matrix_is_what_is_supported():
    jobs = load(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]
    assert jobs["python"]["strategy"]["matrix"]["python"] == pythons()
    line = next(n for n in (ROOT / "constraints.txt").read_text().splitlines() if "are tested" in n)
    named = re.findall(r"2\.\d+\.\d+", line)
    assert jobs["torch"]["strategy"]["matrix"]["torch"] == named
    builds = PROJECT["tool"]["cibuildwheel"]["build"]
    assert builds == [f"cp{p.replace('.', '')}-manylinux_x86_64" for p in pythons()]


@pytest.mark.parametrize("path", FORMS, ids=lambda p: p.name)
def test_an_issue_form_asks_for_the_doctor(path):
    form = load(path)
    assert form["name"] and form["description"]
    fields = {f["id"]: f for f in form["body"] if "id" in f}
    assert "python -m tcompile doctor" in json.dumps(fields["doctor"])


def test_security_says_what_each_thing_may_do_and_where_it_is_checked():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "Telemetry: none" in text
    for thing in ("exported program", "cache", "report", "notebook", "reproducer", "sbom.cdx.json"):
        assert thing in text
    paths = re.findall(r"`((?:compiler|kernel_magics)/[\w/]+\.py)`", text)
    assert paths and all((ROOT / p).exists() for p in paths)


def test_one_version_everywhere():
    lab = json.loads((ROOT / "labextension" / "package.json").read_text(encoding="utf-8"))
    assert lab["version"] == PROJECT["project"]["version"]
    assert f"## [{PROJECT['project']['version']}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_list_of_bundled_javascript_is_true():
    path = BUILT / "sbom.cdx.json"
    if not path.exists():
        pytest.skip("the labextension is not built (make labextension)")
    bom = json.loads(path.read_text(encoding="utf-8"))
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    shipped = {c["name"]: c["hashes"][0]["content"] for c in bom["components"] if c["type"] == "file"}
    files = {p.relative_to(BUILT).as_posix(): p for p in BUILT.rglob("*") if p.is_file() and p != path}
    assert set(shipped) == set(files)
    for name, file in files.items():
        assert shipped[name] == hashlib.sha256(file.read_bytes()).hexdigest(), name
    libraries = {c["name"]: c for c in bom["components"] if c["type"] == "library"}
    licences = json.loads((BUILT / "static" / "third-party-licenses.json").read_text(encoding="utf-8"))["packages"]
    assert {p["name"] for p in licences} <= set(libraries)
    assert all(p["extractedText"] for p in licences), "a bundled package's licence text is missing"
    for c in libraries.values():
        assert c["version"] and c["licenses"][0]["license"]["id"] and c["purl"].startswith("pkg:npm/")
    bundled = b"".join(f.read_bytes() for n, f in files.items() if n.endswith(".js"))
    assert b"plotly" in bundled and "plotly.js-basic-dist-min" in libraries  # (the check can see what it is about)


def test_downloads_are_said_with_their_size(capsys):
    module = script("tools/environment.py")
    progress = module.Progress()
    heard = [
        "  Downloading torch-2.14.1+cpu-cp311-cp311-linux_x86_64.whl (200.5 MB)",
        "Progress 1000 of 200500000",
        "Progress 100250000 of 200500000",
        "Progress 101000000 of 200500000",
        "  Downloading jinja2-3.1.6-py3-none-any.whl (134 kB)",
    ]
    assert all(progress.heard(line) for line in heard)
    assert not progress.heard("WARNING: Location 'x' is ignored")
    progress.end()
    assert capsys.readouterr().out.splitlines() == [
        "tcompile:   downloading torch, 200 MB",
        "tcompile:   torch 100 of 200 MB",
        "tcompile:   downloaded 201 MB in 0 s",
    ]


def wheels_tool():
    return script("tools/wheels.py")


def test_wheels_are_made_for_each_python_that_is_supported_and_starts(tmp_path):
    wheels = wheels_tool()
    assert list(wheels.VERSIONS) == pythons()
    image = PROJECT["tool"]["cibuildwheel"]["manylinux-x86_64-image"]
    assert image == f"manylinux_{wheels.GLIBC.replace('.', '_')}", "both ways promise the same glibc"
    version = "%d.%d" % sys.version_info[:2]
    found = wheels.interpreters([sys.executable])
    assert list(found) == [version] and (found[version][1] / "torch").is_dir()
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(SystemExit, match="does not start"):
        wheels.interpreters([str(broken)])
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\nprintf '/old/python\\n3.9\\n/old/packages\\n'\n")
    old.chmod(0o755)
    assert wheels.interpreters([str(old)]) == {}
