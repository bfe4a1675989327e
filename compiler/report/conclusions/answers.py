"""The ranked answer of a report: where the run's time went, and what would change it, most gain first.

A gain is measured, where something was tried and timed, or it is a bound: the time that would be gone if this part took
none. What a break costs is no bound ("about"): what stands on both sides of it may become one kernel, and both branches
may have to be computed. A bound is told with a remedy alone: of what nobody knows how to change the share is told. What
would change nothing is not told as a remedy; a part that is as it should be is told as that.
"""

from __future__ import annotations

import re
from typing import Any

from .. import schema as s
from ...base.labels import frame_words
from ...base.figures import differs, plural, seconds, share_bounds
from .host_time import BETWEEN, HostTime, host_time
from .waits import FOLLOWS, causes, recompile_seconds, subject
from .wall import IMPORTING, graph_calls, is_joined, kernels_of, own_seconds, untimed

__all__ = ["NO_CHANGE", "answers_of", "most_without_breaks", "raise_peaks"]

_MOST = 6
_LEAST = 0.05  # of the run: smaller parts are no answer
_GOOD = 0.6  # of what the machine can do: from there on there is nothing to gain
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "linear", "matmul", "_mm")
_PEAKS = {"float32": "matmul_flops_per_second", "bfloat16": "bfloat16_flops_per_second"}
_IN_16_BITS = (*_PRODUCTS, "convolution")  # what autocast computes in them, and takes most of a run
NO_CHANGE = ("no change is needed", "nothing to change")  # how a remedy begins that is none
_SMALL_LOOP = "small_loop"  # the kind of a loop of many turns with a few operators each
_TEXT = "print"  # the kind of breaks where text is made of a tensor
_DOMINATES = 0.4  # of the run: from there on products are worth computing in fewer bits
_WORTH_A_SEARCH = 1e-4  # seconds of a run: a search for better kernels takes minutes
_TOLD_APART = 0.1  # bounds of a share that lie further apart are told
_UNCERTAIN = 2.5  # an upper bound that many times the lower one: no advice rests on such a share
_LEAST_GAIN = 1.1  # a bound below that is no reason to change anything
_TOO_MUCH = 10.0  # a bound above that says nothing
_REPLAY: dict[str, Any] = {
    "action": "replay the launches as one: `mode=reduce-overhead`",
    "settings": {"mode": "reduce-overhead"},
}
_IN_CALLS = ("kernels", "library", "compiled", "rest")  # parts of a run that are in compiled calls, or may be
_MORE_WORK = "do more in each call: a larger batch, or the loop over calls inside of the compiled function"


def answers_of(report: Any) -> list[s.Answer]:
    out = _measured(report)
    run = own_seconds(report)
    if run:
        parts = (_products, _library, _kernels, _calls, _outside, _python, _rest, _data, _waiting)
        out += [answer for part in parts for answer in part(report, run)]
    out += _breaks(report) + _compiling(report) + _imports(report)
    for words, tried in report.tried.items():
        for answer in out:
            if answer.how != "measured" and answer.settings == tried["settings"]:  # what it gains was measured
                answer.action, answer.settings, answer.gain, answer.how = "", {}, None, ""
                answer.text += _of_no_use(words, *tried["ratio"])
    for answer in out:
        if answer.how in ("at most", "about") and (answer.gain or 1.0) < _LEAST_GAIN:
            answer.action, answer.settings, answer.gain, answer.how = "", {}, None, ""
    # one break costs what it does; whoever mends one goes on to the next: they are ranked by what all of them cost
    breaks = _without_breaks(report, out)
    rank = lambda answer: (
        max(answer.gain, breaks)
        if answer.how == "about" and answer.gain
        else answer.gain or _without_again(report, answer)
    )
    out.sort(key=lambda answer: (-rank(answer), -(answer.gain or 1.0), -(answer.share or 0.0)))
    return out[:_MOST]


def _without_again(report: Any, answer: s.Answer) -> float:
    """The rank of what has no gain: of compiling again, that of this run without it. The next run may not pay it."""
    if not answer.action or not answer.ref.startswith("recompiles/"):
        return 1.0
    return _bound(report.wall.seconds, sum(recompile_seconds(report)))


def most_without_breaks(report: Any) -> float | None:
    """How many times as fast the run would be at most without its breaks: what torch's kernels in graphs take, loading
    and waiting stay. None where that is not known, or so much that it says nothing."""
    run = own_seconds(report)
    stays = _sum(report, "library", "data", "waiting")
    most = _bound(run, run - min(stays, run)) if run and report.wall.parts else _TOO_MUCH
    return most if most < _TOO_MUCH else None


def _importing(report: Any) -> float:
    return sum(part.seconds for part in report.wall.parts if part.name == IMPORTING)


def _part(took: float, run: float, bounds: tuple[float, float] | None = None) -> str:
    """`90 % of the program's own 2.5 s`; with bounds that lie apart `about 10 to 30 % of ...`."""
    share = _per_cent(took / run)
    if bounds is not None and bounds[1] - bounds[0] > _TOLD_APART:
        share = f"about {100 * bounds[0]:.0f} to {100 * min(1.0, bounds[1]):.0f} %"
    return f"{share} of the program's own {seconds(run)}"


def _looked_at(report: Any, parts: list[s.WallPart], run: float) -> tuple[float, float] | None:
    """The bounds of what parts that were seen at looks took of the run; None where clocks know it."""
    looks = sum(part.looks for part in parts)
    if not looks or not report.wall.looks:
        return None
    share = sum(part.seconds for part in parts) / run
    lo, hi = share_bounds(looks, report.wall.looks)
    seen = looks / report.wall.looks
    return share * lo / seen, share * hi / seen


def _is_certain(bounds: tuple[float, float] | None) -> bool:
    """Whether a share is known well enough for advice to rest on it."""
    return bounds is None or bounds[0] >= _LEAST and bounds[1] <= _UNCERTAIN * bounds[0]


def _sum(report: Any, *kinds: str) -> float:
    return sum(part.seconds for part in report.wall.parts if part.kind in kinds)


def _bound(run: float, saved: float) -> float:
    """How many times as fast the run would be without some of its seconds."""
    return run / max(run - saved, 0.02 * run)


def _per_cent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %" if ratio >= 0.005 else "under 1 %"


def _measured(report: Any) -> list[s.Answer]:
    """What was tried under other options, and how the calls compare with eager."""
    out = []
    for words, tried in report.tried.items():
        ratio, lo, hi = tried["ratio"]
        if differs(lo, hi) and ratio > 1:
            error, what = tried.get("error"), tried.get("of") or "the call"
            text = f"`{words}` makes {what} {ratio:.2g} times as fast"
            if error is not None:
                text += f", at an error of {_power(error)} of its results"
            if tried["settings"] == _REPLAY["settings"] and (host := host_time(report)) is not None:
                text += f": {_per_cent(host.share)} of a call is launches and other work of the host"
            out.append(
                s.Answer(text, ratio, "measured", lo, hi, settings=dict(tried["settings"]), error=error, ref="speed")
            )
    speedup = report.speedups.over("eager")
    if speedup is not None and differs(speedup.lo, speedup.hi) and speedup.ratio < 1:
        out.append(
            s.Answer(
                f"compiled code is slower: {report.speedups.of or 'the cell'} takes {1 / speedup.ratio:.2f} times"
                " eager's time",
                1 / speedup.ratio,
                "measured",
                1 / speedup.hi,
                1 / speedup.lo,
                action="leave this cell to eager: take `%%tcompile` away",
                ref="speed",
            )
        )
    return out


def _power(ratio: float) -> str:
    """`3e-3`"""
    return re.sub(r"e([-+])0", r"e\1", f"{ratio:.0e}")


def _of_no_use(words: str, ratio: float, lo: float, hi: float) -> str:
    """What follows where options were measured that do not help; empty where they do: that is an answer of its own."""
    if differs(lo, hi):
        return "" if ratio > 1 else f"; with `{words}` the call takes {1 / ratio:.2g} times as long (measured)"
    return f"; `{words}` makes no clear difference (measured)"


def _products(report: Any, run: float) -> list[s.Answer]:
    """Products in float32 where they dominate: what 16 bits would win, by what the machine can do in them."""
    faster = _faster_in_16_bits(report)
    if faster < _LEAST_GAIN or "autocast" in report.options or _sum(report, "kernels", "library") < _DOMINATES * run:
        return []
    parts = _product_parts(report)
    took = sum(part.seconds for part in parts)
    if took < _DOMINATES * run:
        return []
    calls = plural(sum(part.count or 1 for part in parts), "call")
    return [
        s.Answer(
            f"{_part(took, run)} is products in float32 ({calls} of {plural(len(parts), 'kernel')})",
            _bound(run, took * (1 - 1 / faster)),
            "at most",
            share=took / run,
            action="compute products in 16 bits: `autocast=bfloat16`",
            settings={"autocast": "bfloat16"},
            ref="speed",
        )
    ]


def _product_parts(report: Any) -> list[s.WallPart]:
    """The kernels and library calls of the run that compute products in float32."""
    found = [graph.lowered.named(_IN_16_BITS, "float32") for graph in report.graphs]
    ops = {op for names in found for op in names.values()}
    refs = {
        f"kernels/{i}"
        for i, kernel in enumerate(report.kernels)
        if kernel.graph is not None and not found[kernel.graph].keys().isdisjoint(kernel.origins)
    }
    return [
        part
        for part in report.wall.parts
        if part.kind == "kernels" and part.ref in refs or part.kind == "library" and part.name in ops
    ]


def raise_peaks(report: Any) -> None:
    """The machine's peaks were measured once, perhaps while others were at work: what a product of the report reached,
    the machine can do."""
    name = _PEAKS["float32"]
    if not report.environment.get(name):
        return
    wide = [graph.lowered.named(_PRODUCTS, "float32").keys() for graph in report.graphs]
    for kernel in report.kernels:
        if (
            kernel.flops
            and kernel.seconds
            and kernel.graph is not None
            and not wide[kernel.graph].isdisjoint(kernel.origins)
        ):
            report.environment[name] = max(float(report.environment[name]), kernel.flops / kernel.seconds)


def _faster_in_16_bits(report: Any) -> float:
    """How many times as fast this machine computes products in bfloat16; 0 where that was not measured."""
    wide, narrow = (float(report.environment.get(f"{name}_flops_per_second") or 0) for name in ("matmul", "bfloat16"))
    return narrow / wide if wide else 0.0


def _nothing_to(do: str, report: Any, run: float) -> str:
    """`nothing to fuse there`, and where products dominate why not in 16 bits either."""
    products = sum(part.seconds for part in _product_parts(report)) >= _DOMINATES * run
    slow = products and 0.0 < _faster_in_16_bits(report) < _LEAST_GAIN
    return f"nothing to {do} there" + ("; bfloat16 would win nothing on this machine (measured)" if slow else "")


def _library(report: Any, run: float) -> list[s.Answer]:
    """Torch's own kernels in plans: products at the machine's peak have nothing to gain."""
    parts = [part for part in report.wall.parts if part.kind == "library"]
    share = sum(part.seconds for part in parts) / run
    if share < _LEAST:
        return []
    products = [part for part in parts if _packet(part.name) in _PRODUCTS]
    took = sum(product.seconds for product in products)
    best = _best_seconds(report) if took and took >= 0.8 * share * run else 0.0
    names = ", ".join(_packet(part.name) for part in parts[:3])
    calls = plural(sum(part.count or 1 for part in parts), "call")
    text = f"{_part(share * run, run)} is {calls} of torch's own kernels ({names})"
    if best:
        reached = best / took
        text += f" at {_per_cent(min(reached, 1.0))} of the machine's peak for products"
        if reached >= _GOOD:
            text += f": {_nothing_to('fuse', report, run)}"
    return [s.Answer(text, share=share, ref="speed")]


def _packet(op: str) -> str:
    return op.removeprefix("aten.").split(".")[0]


def _best_seconds(report: Any) -> float:
    """What the products that plans leave to torch would take at the machine's peak, over the run; 0 where a size or a
    peak is not known."""
    peaks = {dtype: float(report.environment.get(name) or 0) for dtype, name in _PEAKS.items()}
    total = 0.0
    calls = graph_calls(report)
    for i, graph in enumerate(report.graphs):
        if not calls.get(i) or not any(
            extern.graph == i and _packet(extern.op) in _PRODUCTS for extern in report.externs
        ):
            continue
        nodes = graph.lowered.nodes()
        for node in nodes:
            if _packet(node.op) not in _PRODUCTS or node.kernel is not None or len(node.inputs) < 2:
                continue
            factor = nodes[node.inputs[-2]].shape
            peak = peaks.get(node.dtype)
            if (
                not peak
                or not factor
                or not node.shape
                or not all(isinstance(size, int) for size in (*factor, *node.shape))
            ):
                return 0.0
            size = 1
            for d in node.shape:
                size *= d
            total += 2.0 * size * factor[-1] * calls[i] / peak
    return total


def _kernels(report: Any, run: float) -> list[s.Answer]:
    parts = [part for part in report.wall.parts if part.kind == "kernels"]
    took = sum(part.seconds for part in parts)
    if took / run < _LEAST:
        return []
    count = sum(
        graph.ran == "compiled" and report.kernels[kernel].seconds is not None
        for graph in report.graphs
        for kernel in graph.kernels
    )
    longest = next((part for part in parts if not is_joined(part)), parts[0])
    text = f"{_part(took, run)} is {plural(count, 'compiled kernel')}"
    text += f" (the longest `{longest.name}`)" if count > 1 else f", `{longest.name}`"
    reached = _reached(report, parts)
    gain: float | None = None
    if reached is not None:
        text += f",{' together' * (count > 1)} at {_per_cent(reached)} of what this machine can do"
        if report.speedups.note:
            text += ", which was busy with other programs"
        slow = [part for part in parts if part.seconds / run >= _LEAST and (_reached(report, [part]) or 1.0) < _GOOD]
        if reached >= _GOOD and not slow:
            text += (
                f"; {untimed(report)} more have no time" if untimed(report) else f": {_nothing_to('gain', report, run)}"
            )
            return [s.Answer(text, share=took / run, ref=longest.ref)]
        lost = took * (1 - reached)
        if reached >= _GOOD:
            lost = sum(part.seconds * (1 - (_reached(report, [part]) or 1.0)) for part in slow)
            text += ", but " + ", ".join(
                f"`{part.name}` at {_per_cent(_reached(report, [part]) or 0.0)}" for part in slow[:3]
            )
            longest = slow[0]
        # what others took of the machine looks like what kernels fail to reach: no bound is known then, and no remedy
        gain = None if report.speedups.note else _bound(run, lost)
    tuned = report.options.get("mode", "default") in ("max-autotune", "max-autotune-no-cudagraphs")
    if tuned or run < _WORTH_A_SEARCH or gain is None or gain < _LEAST_GAIN:
        return [s.Answer(text, share=took / run, ref=longest.ref)]
    return [
        s.Answer(
            text,
            gain,
            "at most",
            share=took / run,
            action="let the compiler search for better kernels: `mode=max-autotune`",
            settings={"mode": "max-autotune"},
            ref=longest.ref,
        )
    ]


def _reached(report: Any, parts: list[s.WallPart]) -> float | None:
    """How near the kernels come to the machine's limit, of memory or of arithmetic, weighted by their time."""
    copy = float(report.environment.get("copy_bytes_per_second") or 0)
    peak = float(report.environment.get("matmul_flops_per_second") or 0)
    if not copy or not peak:
        return None
    # the peak is that of float32, and products in fewer bits may be beyond it: none is faster than the machine can be
    peak = max([peak, *(kernel.flops / kernel.seconds for kernel in report.kernels if kernel.flops and kernel.seconds)])
    near = known = 0.0
    for part in parts:
        took = best = 0.0
        for kernel in kernels_of(report, part):
            if kernel.seconds and (kernel.bytes or kernel.flops):
                limit = max((kernel.bytes or 0) / copy, (kernel.flops or 0) / peak)
                took += kernel.seconds * kernel.launches
                best += min(kernel.seconds, limit) * kernel.launches
        if took:
            near += part.seconds * best / took
            known += part.seconds
    return near / known if known else None


def _calls(report: Any, run: float) -> list[s.Answer]:
    """Guards and launches of compiled calls: on a GPU replay takes them away, on the CPU more work in each call."""
    known = host_time(report)
    if known is not None and known.share >= 2 * _LEAST and _sum(report, *_IN_CALLS) / run >= 2 * _LEAST:
        return [_beside_kernels(report, known)]
    took = _sum(report, "compiled")
    calls = sum(entry.hits or 0 for entry in report.entries)
    if took / run < 2 * _LEAST or not calls:
        return []
    text = f"{_part(took, run)} is what {plural(calls, 'compiled call')} cost beside the kernels that were timed"
    if untimed(report):  # nobody knows what they take of it: no advice rests on it
        text += f": {plural(untimed(report), 'kernel')} without a time, guards, launches and autograd"
        return [s.Answer(text, share=took / run, ref="speed")]
    text += ": guards, memory, launches, and autograd around them"
    later = _steady(report)
    if later is not None and later < took / 2:
        return [s.Answer(f"{text}; most of it once, as later calls were measured", share=took / run, ref="speed")]
    remedy = _REPLAY if _may_replay(report) else {}
    return [s.Answer(text, share=took / run, ref="speed", **_at_most(_bound(run, took), **remedy))]


def _steady(report: Any) -> float | None:
    """What the run's compiled calls would have cost beside their kernels, had each taken as long as those that were
    measured later; None where not all were measured."""
    medians = {
        call.name: engine.median
        for call in report.speedups.calls
        for engine in call.engines
        if engine.engine == "tcompile" and engine.median
    }
    total = 0.0
    for frame in report.frames:
        hits = [
            report.entries[number].hits or 0 for number in frame.entries if report.entries[number].graph is not None
        ]
        if hits and frame_words(frame.name) not in medians:
            return None
        total += max(hits, default=0) * medians.get(frame_words(frame.name), 0.0)
    return max(0.0, total - _sum(report, "kernels", "library")) if medians else None


def _beside_kernels(report: Any, host_time: HostTime) -> s.Answer:
    gpu = host_time.device != "cpu"
    what = "launches and other work of the host" if gpu else "work around its kernels"
    most = (
        f", most of it {host_time.most} ({seconds(host_time.most_seconds)})"
        if host_time.most_seconds >= host_time.host / 2
        else ""
    )
    call = f"{frame_words(host_time.call)} ({seconds(host_time.seconds)})"
    text = f"{_per_cent(host_time.share)} of a call of {call} is {what}{most}"
    # Python of the program's own may take as long for each row of a larger batch
    remedy: dict[str, Any] = {} if gpu or host_time.most == BETWEEN else {"action": _MORE_WORK}
    if _may_replay(report):
        remedy = _REPLAY
    return s.Answer(
        text, ref="profile", line=host_time.line, **_at_most(_bound(host_time.seconds, host_time.host), **remedy)
    )


def _may_replay(report: Any) -> bool:
    gpu = any(kernel.language in ("triton", "cuda") for kernel in report.kernels)
    return gpu and report.options.get("mode", "default") in ("default", "max-autotune-no-cudagraphs")


def _at_most(
    gain: float, action: str = "", settings: dict[str, Any] | None = None, how: str = "at most"
) -> dict[str, Any]:
    """The fields of a bounded answer; none where there is no remedy."""
    return {"gain": gain, "how": how, "action": action, "settings": dict(settings or {})} if action else {}


def _outside(report: Any, run: float) -> list[s.Answer]:
    """Torch's operators outside of graphs. What put them there are breaks, where there are any."""
    parts = [part for part in report.wall.parts if part.kind == "torch"]
    took = sum(part.seconds for part in parts)
    if took / run < _LEAST:
        return []
    names = ", ".join(f"`{part.name}`" for part in parts[:3])
    bounds = _looked_at(report, parts, run)
    text = f"{_part(took, run, bounds)} is torch's operators outside of compiled code ({names})"
    behind: dict[int, float] = {}
    for part in parts:
        i = _break_before(report, part)
        if i is not None:
            behind[i] = behind.get(i, 0.0) + part.seconds
    if behind:
        i = max(behind, key=lambda i: behind[i])
        brk = report.graph_breaks[i]
        if not _is_certain(bounds):
            text = f"{text}; line {brk.line} ends the graph before them. {_too_few(report, parts)}"
            return [s.Answer(text, ref=f"breaks/{i}", line=brk.line)]
        return [
            s.Answer(
                f"{text}; line {brk.line} ends the graph before them",
                _bound(run, behind[i]),
                "at most",
                share=took / run,
                action=brk.remedy,
                ref=f"breaks/{i}",
                line=brk.line,
            )
        ]
    loop = _nearest_break(report, parts[0])
    if loop is not None and _is_certain(bounds) and _is_in_small_loop(report, report.graph_breaks[loop], parts[0].line):
        return [_whole_tensors(report, loop, text, took, run)]
    return [s.Answer(text, share=took / run, ref="", line=parts[0].line)]


def _too_few(report: Any, parts: list[s.WallPart]) -> str:
    """Why a share gives no advice."""
    return f"{sum(part.looks for part in parts)} of {plural(report.wall.looks, 'look')} saw it: too few to advise by"


def _break_before(report: Any, part: s.WallPart) -> int | None:
    """The break that an operator outside of graphs stands behind: the nearest one above its line, where it has a
    remedy. One that needs no change ends the search: what stands behind it was never meant to be in a graph."""
    i = _nearest_break(report, part)
    return i if i is not None and report.graph_breaks[i].remedy and not report.graph_breaks[i].harmless else None


def _nearest_break(report: Any, part: s.WallPart) -> int | None:
    above = [
        (brk.line, i)
        for i, brk in enumerate(report.graph_breaks)
        if brk.file == part.file and part.line and brk.line <= part.line
    ]
    return max(above)[1] if above and not _is_library(report, part.file) else None


def _breaks(report: Any) -> list[s.Answer]:
    """What the time between the graphs before and after a break is of the call, where that was measured."""
    costly: dict[tuple[str, int], int] = {}  # a line may break in several frames: the one where it weighs most
    for i, brk in enumerate(report.graph_breaks):
        best = costly.get((brk.file, brk.line))
        if brk.seconds and (best is None or (brk.share or 0.0) > (report.graph_breaks[best].share or 0.0)):
            costly[brk.file, brk.line] = i
    out = []
    for i in costly.values():
        brk = report.graph_breaks[i]
        if (brk.share or 0.0) < _LEAST or _is_library(report, brk.file):
            continue
        what = "leaving compiled code, Python, and the guards of what follows"
        if brk.kind == _TEXT:
            what = "the guards of what follows. Making the text takes as long elsewhere, and is not counted"
        remedy = "" if brk.harmless or brk.remedy.startswith(NO_CHANGE) else brk.remedy
        out.append(
            s.Answer(
                f"the break at line {brk.line} costs {seconds(brk.seconds)} a call, {_per_cent(brk.share)} of it:"
                f" {what}",
                ref=f"breaks/{i}",
                line=brk.line,
                **_at_most(_bound(1.0, brk.share), remedy, how="about"),
            )
        )
    told = [answer for answer in out if answer.action]
    if len(told) > 1:
        together = _without_breaks(report, out)
        lines = ", ".join(str(answer.line) for answer in told[:-1]) + f" and {told[-1].line}"
        max(
            told, key=lambda answer: answer.gain or 0.0
        ).text += f". Without those at lines {lines} it is about {together:.2g}×"
    return out


def _without_breaks(report: Any, answers: list[s.Answer]) -> float:
    """How many times as fast a call is about without all breaks that these answers have a remedy for."""
    told = [
        report.graph_breaks[int(answer.ref.split("/")[1])]
        for answer in answers
        if answer.how == "about" and answer.action
    ]
    return _bound(1.0, min(1.0, sum(brk.share or 0.0 for brk in told)))


def _is_library(report: Any, file: str) -> bool:
    return bool(file) and file != report.source.file and not file.startswith("In[")


def _python(report: Any, run: float) -> list[s.Answer]:
    parts = [part for part in report.wall.parts if part.kind == "python" and part.name != IMPORTING]
    took = sum(part.seconds for part in parts)
    if took / run < _LEAST:
        return []
    most = next((part for part in parts if not is_joined(part)), parts[0])
    where = f", most in `{most.name}`" + (f" (line {most.line})" if most.line else "")
    bounds = _looked_at(report, parts, run)
    return [
        s.Answer(
            f"{_part(took, run, bounds)} is Python{where}",
            share=took / run,
            line=most.line,
        )
    ]


def _rest(report: Any, run: float) -> list[s.Answer]:
    """What was not looked at: a run that is short, or whose thread kept the interpreter's lock."""
    took = _sum(report, "rest")
    if report.wall.how == "sampled" or not report.entries or took / run < 4 * _LEAST:
        return []
    text = f"{_part(took, run)} is Python, and what could not be told apart in so short a run"
    loop = next((i for i, brk in enumerate(report.graph_breaks) if brk.kind == _SMALL_LOOP), None)
    if loop is not None:
        return [_whole_tensors(report, loop, text, took, run)]
    return [s.Answer(text, share=took / run)]


def _is_in_small_loop(report: Any, brk: s.Break, line: int | None) -> bool:
    """Whether a line of the report's code lies in the body of a loop that was left to Python."""
    if brk.kind != _SMALL_LOOP or not line or brk.file != report.source.file:
        return False
    first = report.source.first_line or 1
    head, *body = [
        code_line.expandtabs() for code_line in report.source.text.splitlines()[brk.line - first : line - first + 1]
    ] or [""]
    depth = len(head) - len(head.lstrip())
    return all(len(code_line) - len(code_line.lstrip()) > depth for code_line in body if code_line.strip())


def _whole_tensors(report: Any, i: int, text: str, took: float, run: float) -> s.Answer:
    """What is to be done about a loop that was left to Python because its turns do too little for the compiler."""
    line = report.graph_breaks[i].line
    return s.Answer(
        f"{text}; the loop at line {line} runs as plain Python, a few operators a turn",
        _bound(run, took),
        "at most",
        share=took / run,
        action=f"write operators on whole tensors in place of the loop at line {line}",
        ref=f"breaks/{i}",
        line=line,
    )


def _data(report: Any, run: float) -> list[s.Answer]:
    took = _sum(report, "data")
    if took / run < _LEAST:
        return []
    parts = [part for part in report.wall.parts if part.kind == "data"]
    row, bounds = parts[0], _looked_at(report, parts, run)
    if not _is_certain(bounds):
        text = f"{_part(took, run, bounds)} is loading data. {_too_few(report, parts)}"
        return [s.Answer(text, line=row.line)]
    return [
        s.Answer(
            f"{_part(took, run, bounds)} is loading data",
            _bound(run, took),
            "at most",
            share=took / run,
            action="load data in the background: `DataLoader(..., num_workers=2)`, or prepare the batches once",
            line=row.line,
        )
    ]


def _waiting(report: Any, run: float) -> list[s.Answer]:
    out = []
    waits = [part for part in report.wall.parts if part.kind == "waiting" and part.name != IMPORTING]
    took = sum(wait.seconds for wait in waits)
    if took / run >= _LEAST:
        row = waits[0]
        what = f" in `{row.name}`" if row.name else ""
        where = f" (line {row.line})" if row.line else ""
        text = f"{_part(took, run, _looked_at(report, waits, run))} is waiting{what}{where}"
        out.append(s.Answer(text, share=took / run, line=row.line))
    starved = _sum(report, "starved") / report.wall.seconds
    if starved >= _LEAST:
        text = f"other programs had the cores for {_per_cent(starved)} of the run: its figures are less certain"
        out.append(s.Answer(text))
    return out


def _compiling(report: Any) -> list[s.Answer]:
    """What compiling took of this run; of it what was compiled anew because something changed."""
    took, total = report.summary.compile_seconds, report.wall.seconds
    if not total or took / total < 2 * _LEAST:
        return []
    out = []
    again = recompile_seconds(report)
    if sum(again) / total >= _LEAST:
        first = [
            i for i, recompile in enumerate(report.recompiles) if not recompile.suggestion.startswith(FOLLOWS)
        ] or [0]
        i = max(first, key=again.__getitem__)
        recompile = report.recompiles[i]
        what = subject(recompile)
        cause = recompile.source, recompile.detail, recompile.suggestion
        alike = {
            cause,
            *(
                (other.source, other.detail, other.suggestion)
                for other in report.recompiles
                if _follows(other, recompile)
            ),
        }
        of_it = sum(
            took_again
            for recompile, took_again in zip(report.recompiles, again)
            if (recompile.source, recompile.detail, recompile.suggestion) in alike
        )
        told = causes(report)
        others = (
            len(
                {
                    (recompile.frame, recompile.source, recompile.detail)
                    for recompile, took_again in zip(report.recompiles, again)
                    if took_again and recompile in told
                }
            )
            - 1
        )
        whats = (what if " " in what else f"`{what}`") + (f" and {plural(others, 'other')}" if others > 0 else "")
        verb = "holds no more" if recompile.expected == what else "changed"
        fix = "" if recompile.suggestion.startswith(NO_CHANGE) else recompile.suggestion
        of_which = f" ({seconds(of_it)} because of `{what}`)" if others > 0 and " " not in what else ""
        out.append(
            s.Answer(
                f"{seconds(sum(again))} of this run's {seconds(total)} went into compiling again"
                f" because {whats} {verb}{of_which}; a run that meets no new size or value does not pay it",
                action=fix,
                settings={"dynamic": "True"} if fix.startswith("compile with dynamic=True") else {},
                ref=f"recompiles/{i}",
                line=recompile.line,
            )
        )
    waited = max((frame for frame in report.frames if frame.seconds), key=lambda frame: frame.seconds, default=None)
    most = ""
    if waited is not None and len(report.frames) > 1:
        most = f", most in calls of {frame_words(waited.name)} ({seconds(waited.seconds)})"
    then = "a run of the cell with the same sizes and values does not pay it"
    if report.changed_itself:
        then = f"the cell changed `{report.changed_itself}`, which it relies on: its next run compiles again"
    text = f"compiling took {seconds(took)} of this run's {seconds(total)}{most}; {then}"
    out.append(s.Answer(text, ref="calls"))
    return out


def _follows(recompile: s.Recompile, cause: s.Recompile) -> bool:
    return recompile.frame == cause.frame and recompile.suggestion == f"{FOLLOWS} `{subject(cause)}`"


def _imports(report: Any) -> list[s.Answer]:
    took = _importing(report)
    if not report.wall.seconds or took / report.wall.seconds < _LEAST:
        return []
    row = next(part for part in report.wall.parts if part.name == IMPORTING)
    where = f" (line {row.line})" if row.line else ""
    return [
        s.Answer(
            f"importing modules took {seconds(took)} of this run's {seconds(report.wall.seconds)}{where};"
            " the next run does not pay it",
            line=row.line,
        )
    ]
