"""The process in which a submission runs: `python -m tcompile.labs.runner JOB`, started by grader.py.

It says what it does as lines of JSON on a descriptor of its own, so that the grader knows what ran when the process
hangs or dies. Limits that a process can set for itself are set here, once torch is imported.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import resource
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

__all__ = ["main"]

SETUP_SECONDS = 30.0  # of processor time, for each cell of a notebook
ENOUGH = 2  # tests of one exercise that had to be ended: its others are not run


class OutOfTime(BaseException):
    """A time limit passed. No Exception, so that `except Exception` in a loop does not swallow it."""


def _say(channel: int, **facts: Any) -> None:
    text = json.dumps(facts, ensure_ascii=False).encode(errors="replace")  # half of a surrogate pair has no UTF-8
    os.write(channel, text + b"\n")


def _raise_out_of_time(number: int, frame: Any) -> None:
    raise OutOfTime("waited" if number == signal.SIGALRM else "time")


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """At most `seconds` of processor time and six times that in all."""
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)
    signal.setitimer(signal.ITIMER_REAL, 6 * seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory(megabytes: int) -> None:
    """The memory that the process has now, and so much more; children inherit it."""
    with open("/proc/self/status") as f:
        now = next(int(line.split()[1]) for line in f if line.startswith("VmData"))
    most = (now << 10) + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _seed() -> None:
    import torch

    torch.manual_seed(0)
    random.seed(0)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)


def main(job_path: str) -> int:
    job = json.loads(Path(job_path).read_text())
    channel = job["channel"]
    os.set_inheritable(channel, False)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: nobody's process would run on unwatched
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_mb"] << 20, job["file_mb"] << 20))
    import torch

    import tcompile

    from .library import find
    from .reading import read_notebook
    from .submission import load
    from .printed import MOST_PRINTED, TooMuchPrinted, printing_limited
    from .words import say, speak

    torch.set_num_threads(1)
    _limit_memory(job["memory_mb"])
    signal.signal(signal.SIGPROF, _raise_out_of_time)
    signal.signal(signal.SIGALRM, _raise_out_of_time)
    path = Path(job["notebook"])
    _, number, language = read_notebook(path)
    speak(language)
    lab = find(number)
    modules = [(hidden, lab.tests(hidden)) for hidden in ([False, True] if job["hidden"] else [False])]
    messages: dict[str, str] = job["messages"]  # test -> what failed, of those that an earlier process ran
    ended: dict[str, list[str]] = job["ended"]  # exercise -> the messages of its tests that had to be ended

    @contextmanager
    def around(name: str) -> Iterator[None]:
        _say(channel, what="cell", name=name, seconds=SETUP_SECONDS)
        try:
            with _limited(SETUP_SECONDS), printing_limited():
                yield
        except TooMuchPrinted:
            raise RuntimeError(say("printed", limit=MOST_PRINTED)) from None
        except OutOfTime as e:
            raise RuntimeError(say(str(e), seconds=SETUP_SECONDS)) from None
        except SystemExit as e:
            raise RuntimeError(say("exited", code=e.code)) from None
        except KeyboardInterrupt:
            raise RuntimeError("KeyboardInterrupt") from None
        except MemoryError:
            raise RuntimeError(say("memory", limit=job["memory_mb"])) from None

    _seed()
    submission = load(path, lab, frozenset(job["skip_cells"]), around)
    submission._broken.update({name: say("cell", name=name, error=text) for name, text in job["broken"].items()})
    for hidden, module in modules:
        for test, exercise, points, seconds in module.TESTS:
            key = f"{'hidden' if hidden else 'public'}:{test}"
            if key in messages or job["only"] and exercise != job["only"]:
                continue
            before = ended.setdefault(exercise, [])
            if len(before) >= ENOUGH:
                messages[key] = before[-1]
                _say(channel, what="end", test=key, message=messages[key], ended=False)
                continue
            _say(channel, what="begin", test=key, seconds=seconds)
            _seed()
            message, was_ended = _outcome(getattr(module, test), submission, seconds, job)
            tcompile.reset()
            messages[key] = message
            before += [message] * was_ended
            _say(channel, what="end", test=key, message=message, ended=was_ended)
    public = modules[0][1]
    challenges = {e["name"] for e in lab.facts["exercises"] if e["challenge"]}
    wrong = any(messages.get(f"public:{test}") for test, exercise, _, _ in public.TESTS if exercise in challenges)
    if hasattr(public, "score") and "score" not in messages and not wrong and not job["only"]:
        _measure(channel, public.score, submission, job)
    _say(channel, what="finished")
    return 0


def _measure(channel: int, score: Any, submission: Any, job: dict[str, Any]) -> None:
    """The challenge's figures."""
    _say(channel, what="begin", test="score", seconds=60.0)
    _seed()
    figures: dict[str, float] = {}

    def measure(lab: Any) -> None:
        figures.update({str(k): float(v) for k, v in score(lab).items()})

    message, _ = _outcome(measure, submission, 60.0, job)
    _say(channel, what="end", test="score", message=message, figures=figures)


def _outcome(test: Any, submission: Any, seconds: float, job: dict[str, Any]) -> tuple[str, bool]:
    """The message of what failed, empty where the test passed; and whether it had to be ended."""
    from .answers import told
    from .printed import MOST_PRINTED, TooMuchPrinted, printing_limited
    from .words import say

    try:
        with _limited(seconds), printing_limited():
            test(submission)
        return "", False
    except OutOfTime as e:
        return say(str(e), seconds=seconds), True
    except TooMuchPrinted:
        return say("printed", limit=MOST_PRINTED), True
    except SystemExit as e:
        return say("exited", code=e.code), False
    except MemoryError:
        return say("memory", limit=job["memory_mb"]), False
    except OSError as e:
        return told(e) + ("\n" + say("wrote", limit=job["file_mb"]) if e.errno == errno.EFBIG else ""), False
    except KeyboardInterrupt:
        return "KeyboardInterrupt", False
    except RecursionError as e:
        return told(RecursionError(str(e))), False
    except BaseException as e:
        return told(e), False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
