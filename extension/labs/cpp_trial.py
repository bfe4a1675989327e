"""A compiled kernel on trial: in a process of its own, before the real one calls it.

    try_out(kernel, target, opts)            ends what loops, crashes, or touches what is not its own
    instructions(kernel, target, opts)       how many machine instructions one call executes

The trial's buffers end where readable memory ends, so that an element too far is an error. Instructions are counted by
single steps (ptrace): the number depends on the text, the compiler and the processor's kind, and not on the clock.
"""

from __future__ import annotations

import ctypes
import signal
from typing import Any

import torch

from ..compiler.codegen.generated import GeneratedKernel
from ..compiler.lowering.ir import Buffer
from ..compiler.runtime.cpu_kernels import load_text
from ..compiler.symbolic.expr import as_expr

__all__ = ["Uncounted", "instructions", "try_out"]

SECONDS = 10  # of one trial
MOST_STEPS = 4_000_000

# Fork and ptrace alone: the child of a process with threads may call little else.
_TRIAL = r"""
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

typedef long long i64;
typedef int (*Kernel)(void *const *, const i64 *, const void *, char *, i64, i64);
struct Call { Kernel kernel; i64 items; };
enum { MOST_BUFFERS = 64, NO_MEMORY = 76, NO_TRACE = 77 };

// A copy of the data that ends where readable memory ends.
static void *guarded(const void *data, i64 bytes) {
    const i64 page = sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    char *start = (char *)mmap(0, whole + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) _exit(NO_MEMORY);
    mprotect(start, page, PROT_NONE);
    mprotect(start + page + whole, page, PROT_NONE);
    char *place = start + page + whole - bytes;
    if (data) memcpy(place, data, bytes);
    return place;
}

static void child(const Call *calls, i64 n_calls, const void *const *data, const i64 *bytes, i64 n_buffers,
                  const i64 *sizes, i64 scratch, bool step, int seconds) {
    const int ends[] = {SIGALRM, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGTERM, SIGINT};
    for (int s : ends) signal(s, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(seconds);
    void *buffers[MOST_BUFFERS];
    for (i64 i = 0; i < n_buffers; ++i) buffers[i] = guarded(data[i], bytes[i]);
    char *room = (char *)guarded(0, (scratch + 63) / 64 * 64);
    if (step) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0) _exit(NO_TRACE);
        raise(SIGSTOP);
    }
    for (i64 i = 0; i < n_calls; ++i) calls[i].kernel(buffers, sizes, 0, room, 0, calls[i].items);
    _exit(0);
}

static int wait_for(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return status;
}

// Steps taken (with `step`), or 0; -1 for a signal (in *why), -2 for an exit (its code in *why), -3 past `most`.
extern "C" i64 tc_trial(const Call *calls, i64 n_calls, const void *const *data, const i64 *bytes, i64 n_buffers,
                        const i64 *sizes, i64 scratch, int step, i64 most, int seconds, int *why) {
    *why = 0;
    if (n_buffers > MOST_BUFFERS) { *why = NO_MEMORY; return -2; }
    const pid_t pid = fork();
    if (pid < 0) { *why = NO_MEMORY; return -2; }
    if (pid == 0) child(calls, n_calls, data, bytes, n_buffers, sizes, scratch, step != 0, seconds);
    i64 steps = 0;
    bool begun = false;
    for (;;) {
        const int status = wait_for(pid);
        if (WIFEXITED(status)) { *why = WEXITSTATUS(status); return *why ? -2 : steps; }
        if (WIFSIGNALED(status)) { *why = WTERMSIG(status); return -1; }
        const int stop = WSTOPSIG(status);
        const bool expected = begun ? stop == SIGTRAP : stop == SIGSTOP;
        if (!expected || steps >= most || ptrace(PTRACE_SINGLESTEP, pid, 0, 0) != 0) {
            kill(pid, SIGKILL);
            wait_for(pid);
            *why = expected ? 0 : stop;
            return expected ? -3 : -1;
        }
        steps += begun;
        begun = true;
    }
}
"""


class Uncounted(RuntimeError):
    """This system does not let a process step through another."""


class _Call(ctypes.Structure):
    _fields_ = [("kernel", ctypes.c_void_p), ("items", ctypes.c_longlong)]


def _elements(b: Buffer, hints: dict[str, int]) -> int:
    """Of the memory that the buffer spans."""
    last = sum((int(as_expr(n).eval(hints)) - 1) * int(as_expr(s).eval(hints)) for n, s in zip(b.shape, b.stride))
    return last + 1


def _filled(b: Buffer, hints: dict[str, int]) -> torch.Tensor:
    numbers = torch.linspace(0.5, 1.5, max(0, _elements(b, hints)))
    return numbers.to(b.dtype)


def _run(k: GeneratedKernel, target: Any, opts: Any, step: bool) -> int:
    helper, library = load_text([("trial", _TRIAL), (k.name, k.source.code)], target, opts)
    hints = k.kernel.hints
    sizes = (ctypes.c_longlong * (len(k.kernel.sizes) + 1))(*(int(s.eval(hints)) for s in k.kernel.sizes))
    out = (ctypes.c_longlong * (1 + 2 * len(k.source.phases)))()
    getattr(library, k.source.symbol(k.source.plan_symbol))(sizes, out)
    calls = (_Call * len(k.source.phases))()
    for i, phase in enumerate(k.source.phases):
        function = getattr(library, k.source.symbol(phase))
        calls[i] = _Call(ctypes.cast(function, ctypes.c_void_p).value, out[1 + 2 * i])
    tensors = [_filled(b, hints) for b in (*k.kernel.inputs, *k.kernel.outputs)]
    data = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
    spans = (ctypes.c_longlong * len(tensors))(*(t.numel() * t.itemsize for t in tensors))
    trial = helper.tc_trial
    trial.restype = ctypes.c_longlong
    why = ctypes.c_int()

    def steps(n_calls: int) -> int:
        n, scratch = ctypes.c_longlong, ctypes.c_longlong(out[0])
        most, seconds = n(MOST_STEPS), ctypes.c_int(SECONDS)
        got = trial(
            calls, n(n_calls), data, spans, n(len(tensors)), sizes, scratch, step, most, seconds, ctypes.byref(why)
        )
        if got < 0:
            raise _failed(k.name, got, why.value)
        return got

    done = steps(len(calls))
    return done - steps(0) if step else 0


def _failed(name: str, how: int, why: int) -> Exception:
    if how == -3:
        return RuntimeError(f"the kernel {name} is still running after {MOST_STEPS} instructions: does its loop end?")
    if how == -2:
        if why == 77:
            return Uncounted("instructions can't be counted here: the system forbids ptrace (seccomp, or Yama)")
        return RuntimeError(f"the kernel {name} can't be tried: exit status {why}")
    if why in (signal.SIGALRM, signal.SIGKILL):
        return RuntimeError(f"the kernel {name} is still running after {SECONDS} s: does its loop end?")
    if why in (signal.SIGSEGV, signal.SIGBUS):
        return IndexError(f"the kernel {name} reads or writes outside of its tensors: look at its last elements")
    return RuntimeError(f"the kernel {name} crashed: {signal.Signals(why).name}")


def try_out(k: GeneratedKernel, target: Any, opts: Any) -> None:
    """Run a kernel once on numbers of its own. Raises IndexError where it touches what is not its own, RuntimeError
    where it crashes or does not end, ToolchainError where it does not compile."""
    _run(k, target, opts, step=False)


def instructions(k: GeneratedKernel, target: Any, opts: Any) -> int:
    """Machine instructions that one call of a kernel executes. Raises Uncounted where steps can't be counted."""
    return _run(k, target, opts, step=True)
