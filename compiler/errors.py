"""Errors that users see. Each message names the argument, what was expected and what to write."""

from __future__ import annotations

__all__ = [
    "TCompileError",
    "OptionError",
    "BackendError",
    "FullGraphError",
    "ConstraintViolationError",
    "ExportError",
    "ReproduceError",
    "CacheFileError",
    "ToolchainError",
    "NoToolchainError",
    "InternalError",
    "OutdatedCapture",
    "check_error",
    "VerifyError",
]


class TCompileError(Exception):
    """Base of all errors that tcompile raises on purpose."""


class OptionError(TCompileError, ValueError):
    """An unknown or ill-typed option, mode or backend."""


class BackendError(TCompileError, RuntimeError):
    """A backend raised, or returned something that cannot be called. `backend` is its name; what it raised is
    `__cause__`.
    """

    def __init__(self, message: str, backend: str = ""):
        super().__init__(message)
        self.backend = backend


class FullGraphError(TCompileError, RuntimeError):
    """A graph break where fullgraph=True or error_on_graph_break forbids it. `breaks` holds the GraphBreak."""

    def __init__(self, message: str, breaks: list | None = None):
        super().__init__(message)
        self.breaks = breaks or []


class ConstraintViolationError(TCompileError, RuntimeError):
    """A size that mark_dynamic named is fixed by the program, or outside of the range that was given."""


class ExportError(TCompileError, ValueError):
    """A function that cannot be exported, a file that holds no exported program, or arguments that it was not exported
    for.
    """


class ReproduceError(TCompileError, ValueError):
    """What cannot be written as a file that runs by itself, or a failure that does not show when it is looked for."""


class CacheFileError(TCompileError, ValueError):
    """A file that holds no compiled kernels, is damaged, or was saved for another version or machine."""


class ToolchainError(TCompileError, RuntimeError):
    """No C++ compiler, or it failed. The compiled function falls back to eager kernels, visibly."""


class RejectedKernel(ToolchainError):
    """A compiler of GPU code ran, and refused a generated kernel: another compilation of the same would end so too."""


class NoToolchainError(ToolchainError):
    """There is none at all: torch's own kernels run, whatever `suppress_errors` says."""


class VerifyError(TCompileError, AssertionError):
    """A stage's output broke its own rules (TCOMPILE_VERIFY=1)."""


class InternalError(TCompileError, RuntimeError):
    """A bug of tcompile's own. Users get the eager result and a note in the report; tests fail."""


class OutdatedCapture(InternalError):
    """What a capture relied on changed while it compiled, as `failure` says: an import registered with an abstract
    class, or another thread wrote a global. Once is no bug."""

    def __init__(self, text: str, failure: object):
        super().__init__(text)
        self.failure = failure


def check_error(message: str) -> Exception:
    """The exception that a failed check of this message raises."""
    kind, _, text = message.partition(": ")
    return (IndexError if kind == "IndexError" else RuntimeError)(text)
