"""What a build adds to hatchling: the C extension, and the link tree of an editable install.

The C extension makes guards and the frame hook fast; without a C compiler tcompile falls back to pure Python, so a
failed build is said loudly and does not fail the install. A wheel without it carries no platform tag.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RULE = "!" * 100


class TcompileBuildHook(BuildHookInterface):
    """Runs for the wheel target, which editable installs are a version of."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        build_data["shared_data"] |= lab_files(root)
        library = build_native(root, say=self.app.display_warning)
        if library is not None:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["artifacts"].append(f"/{library.relative_to(root)}")
        if version == "editable":
            link_tree(root)
        else:
            build_data["artifacts"] += build_labs(root)


def build_native(root: Path, say: Any = print) -> Path | None:
    """Build the C extension in place for this Python. The shared library, or None where that failed."""
    builder = root / "compiler" / "native" / "build.py"
    reason = f"{builder} is missing"
    if builder.exists():
        spec = importlib.util.spec_from_file_location("tcompile_native_build", builder)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        try:
            spec.loader.exec_module(module)
            library = module.build_inplace()
            try:
                module.build_node()
            except RuntimeError as error:  # torch without headers, or no C++ compiler
                say(
                    "tcompile: calls with gradients take a microsecond more each: node.cpp was not built:"
                    f" {str(error)[-500:]}"
                )
            return library
        except Exception as error:  # whatever it was: an install without it works
            reason = f"{type(error).__name__}: {error}"
    for line in (
        RULE,
        "tcompile: the C extension was NOT built; guards and the frame hook run in pure Python, slower.",
        f"reason: {reason}",
        (
            "Install a C compiler and Python's headers (Debian: apt install build-essential "
            "python3-dev) and install tcompile again."
        ),
        RULE,
    ):
        say(line)
    return None


def lab_files(root: Path) -> dict[str, str]:
    """What JupyterLab loads, and where an installer puts it: all that was built but `standalone.js`, which the package
    itself reads. Nothing where there was no Node to build it. (JupyterLab reads the version from `package.json.orig`.)
    """
    built = root / "extension" / "labextension"
    files = sorted(f.relative_to(built) for f in built.rglob("*") if f.is_file() and f.name != "standalone.js")
    return {str(built / f): f"share/jupyter/labextensions/tcompile-lab/{f.as_posix()}" for f in files}


def build_labs(root: Path) -> list[str]:
    """The course labs as students get them, for the wheel; solutions and hidden tests stay out. What to include."""
    package = root / "extension" / "labs" / "format" / "__init__.py"
    spec = importlib.util.spec_from_file_location(
        "tcompile_labs_format", package, submodule_search_locations=[str(package.parent)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its own modules are imported from it
    spec.loader.exec_module(module)
    built = root / "build" / "wheel-labs"
    module.build_all(root / "notebooks" / "labs", built)
    target = root / "extension" / "labs" / "built"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(built / "student", target)
    return ["extension/labs/built"]


def link_tree(root: Path) -> Path:
    """build/editable/tcompile as relative links: each entry of extension/, and the folders kernel_magics and compiler.

    Replaced entry by entry, so that a process that imports from it meanwhile never finds it gone.
    """
    tree = root / "build" / "editable" / "tcompile"
    tree.mkdir(parents=True, exist_ok=True)
    wanted = {p.name: p for p in (root / "extension").iterdir() if p.name not in ("__pycache__", "labextension")}
    wanted |= {name: root / name for name in ("kernel_magics", "compiler")}
    wanted["labextension"] = root / "extension" / "labextension"
    for entry in tree.iterdir():
        if entry.name not in wanted:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    for name, target in wanted.items():
        link, text = tree / name, os.path.relpath(target, tree)
        if link.is_symlink() and os.readlink(link) == text:
            continue
        fresh = tree / f".{name}.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(text)
        os.replace(fresh, link)
    return tree


def get_build_hook() -> type[BuildHookInterface]:
    return TcompileBuildHook


if __name__ == "__main__":  # python hatch_build.py: both steps in place, without pip
    here = Path(__file__).resolve().parent
    print(f"tcompile: C extension: {build_native(here) or 'NOT built'}; link tree: {link_tree(here)}")
