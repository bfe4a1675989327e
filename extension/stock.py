"""`torch.compile(model, backend="tcompile")`, also where the package is not installed with its entry point.

torch finds backends of installed packages by entry point. A source tree on the path has none: there the backend is
registered when torch loads its registry, which may be before or long after `import tcompile`. Nothing of torch is
imported here.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Sequence

__all__ = ["offer_backend"]

_REGISTRY = "torch._dynamo.backends.registry"


def backend(gm: Any, example_inputs: list, **options: Any) -> Any:
    """The backend "tcompile" of torch.compile."""
    from .compiler.frontend.graph_calls import tcompile_backend

    return tcompile_backend(gm, example_inputs, **options)


def _register(registry: ModuleType) -> None:
    if "tcompile" not in registry._COMPILER_FNS:
        registry.register_backend(compiler_fn=backend, name="tcompile")


class _Watcher:
    """Sees torch's registry being imported, once, and registers the backend when it is there."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _REGISTRY:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None and hasattr(loader, "exec_module"):
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                _register(module)

            loader.exec_module = exec_module
        return spec


def offer_backend() -> None:
    """Make the backend known to stock torch.compile, now or when its registry is loaded."""
    loaded = sys.modules.get(_REGISTRY)
    if loaded is not None:
        _register(loaded)
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())  # type: ignore[arg-type]
