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


def answers_of(r: Any) -> list[s.Answer]:
    out = _measured(r)
    run = own_seconds(r)
    if run:
        parts = (_products, _library, _kernels, _calls, _outside, _python, _rest, _data, _waiting)
        out += [a for part in parts for a in part(r, run)]
    out += _breaks(r) + _compiling(r) + _imports(r)
    for words, tried in r.tried.items():
        for a in out:
            if a.how != "measured" and a.settings == tried["settings"]:  # what it gains was measured
                a.action, a.settings, a.gain, a.how = "", {}, None, ""
                a.text += _of_no_use(words, *tried["ratio"])
    for a in out:
        if a.how in ("at most", "about") and (a.gain or 1.0) < _LEAST_GAIN:
            a.action, a.settings, a.gain, a.how = "", {}, None, ""
    # one break costs what it does; whoever mends one goes on to the next: they are ranked by what all of them cost
    breaks = _without_breaks(r, out)
    rank = lambda a: max(a.gain, breaks) if a.how == "about" and a.gain else a.gain or _without_again(r, a)
    out.sort(key=lambda a: (-rank(a), -(a.gain or 1.0), -(a.share or 0.0)))
    return out[:_MOST]


def _without_again(r: Any, a: s.Answer) -> float:
    """The rank of what has no gain: of compiling again, that of this run without it. The next run may not pay it."""
    if not a.action or not a.ref.startswith("recompiles/"):
        return 1.0
    return _bound(r.wall.seconds, sum(recompile_seconds(r)))


def most_without_breaks(r: Any) -> float | None:
    """How many times as fast the run would be at most without its breaks: what torch's kernels in graphs take, loading
    and waiting stay. None where that is not known, or so much that it says nothing."""
    run = own_seconds(r)
    stays = _sum(r, "library", "data", "waiting")
    most = _bound(run, run - min(stays, run)) if run and r.wall.parts else _TOO_MUCH
    return most if most < _TOO_MUCH else None


def _importing(r: Any) -> float:
    return sum(p.seconds for p in r.wall.parts if p.name == IMPORTING)


def _part(took: float, run: float, bounds: tuple[float, float] | None = None) -> str:
    """`90 % of the program's own 2.5 s`; with bounds that lie apart `about 10 to 30 % of ...`."""
    share = _per_cent(took / run)
    if bounds is not None and bounds[1] - bounds[0] > _TOLD_APART:
        share = f"about {100 * bounds[0]:.0f} to {100 * min(1.0, bounds[1]):.0f} %"
    return f"{share} of the program's own {seconds(run)}"


def _looked_at(r: Any, parts: list[s.WallPart], run: float) -> tuple[float, float] | None:
    """The bounds of what parts that were seen at looks took of the run; None where clocks know it."""
    looks = sum(p.looks for p in parts)
    if not looks or not r.wall.looks:
        return None
    share = sum(p.seconds for p in parts) / run
    lo, hi = share_bounds(looks, r.wall.looks)
    seen = looks / r.wall.looks
    return share * lo / seen, share * hi / seen


def _is_certain(bounds: tuple[float, float] | None) -> bool:
    """Whether a share is known well enough for advice to rest on it."""
    return bounds is None or bounds[0] >= _LEAST and bounds[1] <= _UNCERTAIN * bounds[0]


def _sum(r: Any, *kinds: str) -> float:
    return sum(p.seconds for p in r.wall.parts if p.kind in kinds)


def _bound(run: float, saved: float) -> float:
    """How many times as fast the run would be without some of its seconds."""
    return run / max(run - saved, 0.02 * run)


def _per_cent(x: float) -> str:
    return f"{100 * x:.0f} %" if x >= 0.005 else "under 1 %"


def _measured(r: Any) -> list[s.Answer]:
    """What was tried under other options, and how the calls compare with eager."""
    out = []
    for words, tried in r.tried.items():
        ratio, lo, hi = tried["ratio"]
        if differs(lo, hi) and ratio > 1:
            error, what = tried.get("error"), tried.get("of") or "the call"
            text = f"`{words}` makes {what} {ratio:.2g} times as fast"
            if error is not None:
                text += f", at an error of {_power(error)} of its results"
            if tried["settings"] == _REPLAY["settings"] and (host := host_time(r)) is not None:
                text += f": {_per_cent(host.share)} of a call is launches and other work of the host"
            out.append(
                s.Answer(text, ratio, "measured", lo, hi, settings=dict(tried["settings"]), error=error, ref="speed")
            )
    x = r.speedups.over("eager")
    if x is not None and differs(x.lo, x.hi) and x.ratio < 1:
        out.append(
            s.Answer(
                f"compiled code is slower: {r.speedups.of or 'the cell'} takes {1 / x.ratio:.2f} times eager's time",
                1 / x.ratio,
                "measured",
                1 / x.hi,
                1 / x.lo,
                action="leave this cell to eager: take `%%tcompile` away",
                ref="speed",
            )
        )
    return out


def _power(x: float) -> str:
    """`3e-3`"""
    return re.sub(r"e([-+])0", r"e\1", f"{x:.0e}")


def _of_no_use(words: str, ratio: float, lo: float, hi: float) -> str:
    """What follows where options were measured that do not help; empty where they do: that is an answer of its own."""
    if differs(lo, hi):
        return "" if ratio > 1 else f"; with `{words}` the call takes {1 / ratio:.2g} times as long (measured)"
    return f"; `{words}` makes no clear difference (measured)"


def _products(r: Any, run: float) -> list[s.Answer]:
    """Products in float32 where they dominate: what 16 bits would win, by what the machine can do in them."""
    faster = _faster_in_16_bits(r)
    if faster < _LEAST_GAIN or "autocast" in r.options or _sum(r, "kernels", "library") < _DOMINATES * run:
        return []
    parts = _product_parts(r)
    took = sum(p.seconds for p in parts)
    if took < _DOMINATES * run:
        return []
    calls = plural(sum(p.count or 1 for p in parts), "call")
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


def _product_parts(r: Any) -> list[s.WallPart]:
    """The kernels and library calls of the run that compute products in float32."""
    found = [g.lowered.named(_IN_16_BITS, "float32") for g in r.graphs]
    ops = {op for names in found for op in names.values()}
    refs = {
        f"kernels/{i}"
        for i, k in enumerate(r.kernels)
        if k.graph is not None and not found[k.graph].keys().isdisjoint(k.origins)
    }
    return [p for p in r.wall.parts if p.kind == "kernels" and p.ref in refs or p.kind == "library" and p.name in ops]


def raise_peaks(r: Any) -> None:
    """The machine's peaks were measured once, perhaps while others were at work: what a product of the report reached,
    the machine can do."""
    name = _PEAKS["float32"]
    if not r.environment.get(name):
        return
    wide = [g.lowered.named(_PRODUCTS, "float32").keys() for g in r.graphs]
    for k in r.kernels:
        if k.flops and k.seconds and k.graph is not None and not wide[k.graph].isdisjoint(k.origins):
            r.environment[name] = max(float(r.environment[name]), k.flops / k.seconds)


def _faster_in_16_bits(r: Any) -> float:
    """How many times as fast this machine computes products in bfloat16; 0 where that was not measured."""
    wide, narrow = (float(r.environment.get(f"{name}_flops_per_second") or 0) for name in ("matmul", "bfloat16"))
    return narrow / wide if wide else 0.0


def _nothing_to(do: str, r: Any, run: float) -> str:
    """`nothing to fuse there`, and where products dominate why not in 16 bits either."""
    products = sum(p.seconds for p in _product_parts(r)) >= _DOMINATES * run
    slow = products and 0.0 < _faster_in_16_bits(r) < _LEAST_GAIN
    return f"nothing to {do} there" + ("; bfloat16 would win nothing on this machine (measured)" if slow else "")


def _library(r: Any, run: float) -> list[s.Answer]:
    """Torch's own kernels in plans: products at the machine's peak have nothing to gain."""
    parts = [p for p in r.wall.parts if p.kind == "library"]
    share = sum(p.seconds for p in parts) / run
    if share < _LEAST:
        return []
    products = [p for p in parts if _packet(p.name) in _PRODUCTS]
    took = sum(p.seconds for p in products)
    best = _best_seconds(r) if took and took >= 0.8 * share * run else 0.0
    names = ", ".join(_packet(p.name) for p in parts[:3])
    calls = plural(sum(p.count or 1 for p in parts), "call")
    text = f"{_part(share * run, run)} is {calls} of torch's own kernels ({names})"
    if best:
        reached = best / took
        text += f" at {_per_cent(min(reached, 1.0))} of the machine's peak for products"
        if reached >= _GOOD:
            text += f": {_nothing_to('fuse', r, run)}"
    return [s.Answer(text, share=share, ref="speed")]


def _packet(op: str) -> str:
    return op.removeprefix("aten.").split(".")[0]


def _best_seconds(r: Any) -> float:
    """What the products that plans leave to torch would take at the machine's peak, over the run; 0 where a size or a
    peak is not known."""
    peaks = {dtype: float(r.environment.get(name) or 0) for dtype, name in _PEAKS.items()}
    total = 0.0
    calls = graph_calls(r)
    for i, g in enumerate(r.graphs):
        if not calls.get(i) or not any(x.graph == i and _packet(x.op) in _PRODUCTS for x in r.externs):
            continue
        nodes = g.lowered.nodes()
        for n in nodes:
            if _packet(n.op) not in _PRODUCTS or n.kernel is not None or len(n.inputs) < 2:
                continue
            factor = nodes[n.inputs[-2]].shape
            peak = peaks.get(n.dtype)
            if not peak or not factor or not n.shape or not all(isinstance(d, int) for d in (*factor, *n.shape)):
                return 0.0
            size = 1
            for d in n.shape:
                size *= d
            total += 2.0 * size * factor[-1] * calls[i] / peak
    return total


def _kernels(r: Any, run: float) -> list[s.Answer]:
    parts = [p for p in r.wall.parts if p.kind == "kernels"]
    took = sum(p.seconds for p in parts)
    if took / run < _LEAST:
        return []
    count = sum(g.ran == "compiled" and r.kernels[k].seconds is not None for g in r.graphs for k in g.kernels)
    longest = next((p for p in parts if not is_joined(p)), parts[0])
    text = f"{_part(took, run)} is {plural(count, 'compiled kernel')}"
    text += f" (the longest `{longest.name}`)" if count > 1 else f", `{longest.name}`"
    reached = _reached(r, parts)
    gain: float | None = None
    if reached is not None:
        text += f",{' together' * (count > 1)} at {_per_cent(reached)} of what this machine can do"
        if r.speedups.note:
            text += ", which was busy with other programs"
        slow = [p for p in parts if p.seconds / run >= _LEAST and (_reached(r, [p]) or 1.0) < _GOOD]
        if reached >= _GOOD and not slow:
            text += f"; {untimed(r)} more have no time" if untimed(r) else f": {_nothing_to('gain', r, run)}"
            return [s.Answer(text, share=took / run, ref=longest.ref)]
        lost = took * (1 - reached)
        if reached >= _GOOD:
            lost = sum(p.seconds * (1 - (_reached(r, [p]) or 1.0)) for p in slow)
            text += ", but " + ", ".join(f"`{p.name}` at {_per_cent(_reached(r, [p]) or 0.0)}" for p in slow[:3])
            longest = slow[0]
        # what others took of the machine looks like what kernels fail to reach: no bound is known then, and no remedy
        gain = None if r.speedups.note else _bound(run, lost)
    tuned = r.options.get("mode", "default") in ("max-autotune", "max-autotune-no-cudagraphs")
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


def _reached(r: Any, parts: list[s.WallPart]) -> float | None:
    """How near the kernels come to the machine's limit, of memory or of arithmetic, weighted by their time."""
    copy = float(r.environment.get("copy_bytes_per_second") or 0)
    peak = float(r.environment.get("matmul_flops_per_second") or 0)
    if not copy or not peak:
        return None
    # the peak is that of float32, and products in fewer bits may be beyond it: none is faster than the machine can be
    peak = max([peak, *(k.flops / k.seconds for k in r.kernels if k.flops and k.seconds)])
    near = known = 0.0
    for p in parts:
        took = best = 0.0
        for k in kernels_of(r, p):
            if k.seconds and (k.bytes or k.flops):
                limit = max((k.bytes or 0) / copy, (k.flops or 0) / peak)
                took += k.seconds * k.launches
                best += min(k.seconds, limit) * k.launches
        if took:
            near += p.seconds * best / took
            known += p.seconds
    return near / known if known else None


def _calls(r: Any, run: float) -> list[s.Answer]:
    """Guards and launches of compiled calls: on a GPU replay takes them away, on the CPU more work in each call."""
    known = host_time(r)
    if known is not None and known.share >= 2 * _LEAST and _sum(r, *_IN_CALLS) / run >= 2 * _LEAST:
        return [_beside_kernels(r, known)]
    took = _sum(r, "compiled")
    calls = sum(e.hits or 0 for e in r.entries)
    if took / run < 2 * _LEAST or not calls:
        return []
    text = f"{_part(took, run)} is what {plural(calls, 'compiled call')} cost beside the kernels that were timed"
    if untimed(r):  # nobody knows what they take of it: no advice rests on it
        text += f": {plural(untimed(r), 'kernel')} without a time, guards, launches and autograd"
        return [s.Answer(text, share=took / run, ref="speed")]
    text += ": guards, memory, launches, and autograd around them"
    later = _steady(r)
    if later is not None and later < took / 2:
        return [s.Answer(f"{text}; most of it once, as later calls were measured", share=took / run, ref="speed")]
    remedy = _REPLAY if _may_replay(r) else {}
    return [s.Answer(text, share=took / run, ref="speed", **_at_most(_bound(run, took), **remedy))]


def _steady(r: Any) -> float | None:
    """What the run's compiled calls would have cost beside their kernels, had each taken as long as those that were
    measured later; None where not all were measured."""
    medians = {c.name: e.median for c in r.speedups.calls for e in c.engines if e.engine == "tcompile" and e.median}
    total = 0.0
    for f in r.frames:
        hits = [r.entries[n].hits or 0 for n in f.entries if r.entries[n].graph is not None]
        if hits and frame_words(f.name) not in medians:
            return None
        total += max(hits, default=0) * medians.get(frame_words(f.name), 0.0)
    return max(0.0, total - _sum(r, "kernels", "library")) if medians else None


def _beside_kernels(r: Any, t: HostTime) -> s.Answer:
    gpu = t.device != "cpu"
    what = "launches and other work of the host" if gpu else "work around its kernels"
    most = f", most of it {t.most} ({seconds(t.most_seconds)})" if t.most_seconds >= t.host / 2 else ""
    text = f"{_per_cent(t.share)} of a call of {frame_words(t.call)} ({seconds(t.seconds)}) is {what}{most}"
    # Python of the program's own may take as long for each row of a larger batch
    remedy: dict[str, Any] = {} if gpu or t.most == BETWEEN else {"action": _MORE_WORK}
    if _may_replay(r):
        remedy = _REPLAY
    return s.Answer(text, ref="profile", line=t.line, **_at_most(_bound(t.seconds, t.host), **remedy))


def _may_replay(r: Any) -> bool:
    gpu = any(k.language in ("triton", "cuda") for k in r.kernels)
    return gpu and r.options.get("mode", "default") in ("default", "max-autotune-no-cudagraphs")


def _at_most(
    gain: float, action: str = "", settings: dict[str, Any] | None = None, how: str = "at most"
) -> dict[str, Any]:
    """The fields of a bounded answer; none where there is no remedy."""
    return {"gain": gain, "how": how, "action": action, "settings": dict(settings or {})} if action else {}


def _outside(r: Any, run: float) -> list[s.Answer]:
    """Torch's operators outside of graphs. What put them there are breaks, where there are any."""
    parts = [p for p in r.wall.parts if p.kind == "torch"]
    took = sum(p.seconds for p in parts)
    if took / run < _LEAST:
        return []
    names = ", ".join(f"`{p.name}`" for p in parts[:3])
    bounds = _looked_at(r, parts, run)
    text = f"{_part(took, run, bounds)} is torch's operators outside of compiled code ({names})"
    behind: dict[int, float] = {}
    for p in parts:
        i = _break_before(r, p)
        if i is not None:
            behind[i] = behind.get(i, 0.0) + p.seconds
    if behind:
        i = max(behind, key=lambda i: behind[i])
        b = r.graph_breaks[i]
        if not _is_certain(bounds):
            text = f"{text}; line {b.line} ends the graph before them. {_too_few(r, parts)}"
            return [s.Answer(text, ref=f"breaks/{i}", line=b.line)]
        return [
            s.Answer(
                f"{text}; line {b.line} ends the graph before them",
                _bound(run, behind[i]),
                "at most",
                share=took / run,
                action=b.remedy,
                ref=f"breaks/{i}",
                line=b.line,
            )
        ]
    loop = _nearest_break(r, parts[0])
    if loop is not None and _is_certain(bounds) and _is_in_small_loop(r, r.graph_breaks[loop], parts[0].line):
        return [_whole_tensors(r, loop, text, took, run)]
    return [s.Answer(text, share=took / run, ref="", line=parts[0].line)]


def _too_few(r: Any, parts: list[s.WallPart]) -> str:
    """Why a share gives no advice."""
    return f"{sum(p.looks for p in parts)} of {plural(r.wall.looks, 'look')} saw it: too few to advise by"


def _break_before(r: Any, p: s.WallPart) -> int | None:
    """The break that an operator outside of graphs stands behind: the nearest one above its line, where it has a
    remedy. One that needs no change ends the search: what stands behind it was never meant to be in a graph."""
    i = _nearest_break(r, p)
    return i if i is not None and r.graph_breaks[i].remedy and not r.graph_breaks[i].harmless else None


def _nearest_break(r: Any, p: s.WallPart) -> int | None:
    above = [(b.line, i) for i, b in enumerate(r.graph_breaks) if b.file == p.file and p.line and b.line <= p.line]
    return max(above)[1] if above and not _is_library(r, p.file) else None


def _breaks(r: Any) -> list[s.Answer]:
    """What the time between the graphs before and after a break is of the call, where that was measured."""
    costly: dict[tuple[str, int], int] = {}  # a line may break in several frames: the one where it weighs most
    for i, b in enumerate(r.graph_breaks):
        best = costly.get((b.file, b.line))
        if b.seconds and (best is None or (b.share or 0.0) > (r.graph_breaks[best].share or 0.0)):
            costly[b.file, b.line] = i
    out = []
    for i in costly.values():
        b = r.graph_breaks[i]
        if (b.share or 0.0) < _LEAST or _is_library(r, b.file):
            continue
        what = "leaving compiled code, Python, and the guards of what follows"
        if b.kind == _TEXT:
            what = "the guards of what follows. Making the text takes as long elsewhere, and is not counted"
        remedy = "" if b.harmless or b.remedy.startswith(NO_CHANGE) else b.remedy
        out.append(
            s.Answer(
                f"the break at line {b.line} costs {seconds(b.seconds)} a call, {_per_cent(b.share)} of it: {what}",
                ref=f"breaks/{i}",
                line=b.line,
                **_at_most(_bound(1.0, b.share), remedy, how="about"),
            )
        )
    told = [a for a in out if a.action]
    if len(told) > 1:
        together = _without_breaks(r, out)
        lines = ", ".join(str(a.line) for a in told[:-1]) + f" and {told[-1].line}"
        max(told, key=lambda a: a.gain or 0.0).text += f". Without those at lines {lines} it is about {together:.2g}×"
    return out


def _without_breaks(r: Any, answers: list[s.Answer]) -> float:
    """How many times as fast a call is about without all breaks that these answers have a remedy for."""
    told = [r.graph_breaks[int(a.ref.split("/")[1])] for a in answers if a.how == "about" and a.action]
    return _bound(1.0, min(1.0, sum(b.share or 0.0 for b in told)))


def _is_library(r: Any, file: str) -> bool:
    return bool(file) and file != r.source.file and not file.startswith("In[")


def _python(r: Any, run: float) -> list[s.Answer]:
    parts = [p for p in r.wall.parts if p.kind == "python" and p.name != IMPORTING]
    took = sum(p.seconds for p in parts)
    if took / run < _LEAST:
        return []
    most = next((p for p in parts if not is_joined(p)), parts[0])
    where = f", most in `{most.name}`" + (f" (line {most.line})" if most.line else "")
    bounds = _looked_at(r, parts, run)
    return [
        s.Answer(
            f"{_part(took, run, bounds)} is Python{where}",
            share=took / run,
            line=most.line,
        )
    ]


def _rest(r: Any, run: float) -> list[s.Answer]:
    """What was not looked at: a run that is short, or whose thread kept the interpreter's lock."""
    took = _sum(r, "rest")
    if r.wall.how == "sampled" or not r.entries or took / run < 4 * _LEAST:
        return []
    text = f"{_part(took, run)} is Python, and what could not be told apart in so short a run"
    loop = next((i for i, b in enumerate(r.graph_breaks) if b.kind == _SMALL_LOOP), None)
    if loop is not None:
        return [_whole_tensors(r, loop, text, took, run)]
    return [s.Answer(text, share=took / run)]


def _is_in_small_loop(r: Any, b: s.Break, line: int | None) -> bool:
    """Whether a line of the report's code lies in the body of a loop that was left to Python."""
    if b.kind != _SMALL_LOOP or not line or b.file != r.source.file:
        return False
    first = r.source.first_line or 1
    head, *body = [x.expandtabs() for x in r.source.text.splitlines()[b.line - first : line - first + 1]] or [""]
    depth = len(head) - len(head.lstrip())
    return all(len(x) - len(x.lstrip()) > depth for x in body if x.strip())


def _whole_tensors(r: Any, i: int, text: str, took: float, run: float) -> s.Answer:
    """What is to be done about a loop that was left to Python because its turns do too little for the compiler."""
    line = r.graph_breaks[i].line
    return s.Answer(
        f"{text}; the loop at line {line} runs as plain Python, a few operators a turn",
        _bound(run, took),
        "at most",
        share=took / run,
        action=f"write operators on whole tensors in place of the loop at line {line}",
        ref=f"breaks/{i}",
        line=line,
    )


def _data(r: Any, run: float) -> list[s.Answer]:
    took = _sum(r, "data")
    if took / run < _LEAST:
        return []
    parts = [p for p in r.wall.parts if p.kind == "data"]
    row, bounds = parts[0], _looked_at(r, parts, run)
    if not _is_certain(bounds):
        text = f"{_part(took, run, bounds)} is loading data. {_too_few(r, parts)}"
        return [s.Answer(text, line=row.line)]
    return [
        s.Answer(
            f"{_part(took, run, bounds)} is loading data",
            _bound(run, took),
            "at most",
            share=took / run,
            action="load beside the work: `DataLoader(..., num_workers=2)`, or prepare the batches once",
            line=row.line,
        )
    ]


def _waiting(r: Any, run: float) -> list[s.Answer]:
    out = []
    waits = [p for p in r.wall.parts if p.kind == "waiting" and p.name != IMPORTING]
    took = sum(p.seconds for p in waits)
    if took / run >= _LEAST:
        row = waits[0]
        what = f" in `{row.name}`" if row.name else ""
        where = f" (line {row.line})" if row.line else ""
        text = f"{_part(took, run, _looked_at(r, waits, run))} is waiting{what}{where}"
        out.append(s.Answer(text, share=took / run, line=row.line))
    starved = _sum(r, "starved") / r.wall.seconds
    if starved >= _LEAST:
        text = f"other programs had the cores for {_per_cent(starved)} of the run: its figures are less certain"
        out.append(s.Answer(text))
    return out


def _compiling(r: Any) -> list[s.Answer]:
    """What compiling took of this run; of it what was compiled anew because something changed."""
    took, total = r.summary.compile_seconds, r.wall.seconds
    if not total or took / total < 2 * _LEAST:
        return []
    out = []
    again = recompile_seconds(r)
    if sum(again) / total >= _LEAST:
        first = [i for i, x in enumerate(r.recompiles) if not x.suggestion.startswith(FOLLOWS)] or [0]
        i = max(first, key=again.__getitem__)
        c = r.recompiles[i]
        what = subject(c)
        cause = c.source, c.detail, c.suggestion
        alike = {cause, *((x.source, x.detail, x.suggestion) for x in r.recompiles if _follows(x, c))}
        of_it = sum(t for x, t in zip(r.recompiles, again) if (x.source, x.detail, x.suggestion) in alike)
        told = causes(r)
        others = len({(x.frame, x.source, x.detail) for x, t in zip(r.recompiles, again) if t and x in told}) - 1
        whats = (what if " " in what else f"`{what}`") + (f" and {plural(others, 'other')}" if others > 0 else "")
        verb = "holds no more" if c.expected == what else "changed"
        fix = "" if c.suggestion.startswith(NO_CHANGE) else c.suggestion
        of_which = f" ({seconds(of_it)} because of `{what}`)" if others > 0 and " " not in what else ""
        out.append(
            s.Answer(
                f"{seconds(sum(again))} of this run's {seconds(total)} went into compiling again"
                f" because {whats} {verb}{of_which}; a run that meets no new size or value does not pay it",
                action=fix,
                settings={"dynamic": "True"} if fix.startswith("compile with dynamic=True") else {},
                ref=f"recompiles/{i}",
                line=c.line,
            )
        )
    waited = max((f for f in r.frames if f.seconds), key=lambda f: f.seconds, default=None)
    most = ""
    if waited is not None and len(r.frames) > 1:
        most = f", most in calls of {frame_words(waited.name)} ({seconds(waited.seconds)})"
    then = "a run of the cell with the same sizes and values does not pay it"
    if r.changed_itself:
        then = f"the cell changed `{r.changed_itself}`, which it relies on: its next run compiles again"
    text = f"compiling took {seconds(took)} of this run's {seconds(total)}{most}; {then}"
    out.append(s.Answer(text, ref="calls"))
    return out


def _follows(x: s.Recompile, cause: s.Recompile) -> bool:
    return x.frame == cause.frame and x.suggestion == f"{FOLLOWS} `{subject(cause)}`"


def _imports(r: Any) -> list[s.Answer]:
    took = _importing(r)
    if not r.wall.seconds or took / r.wall.seconds < _LEAST:
        return []
    row = next(p for p in r.wall.parts if p.name == IMPORTING)
    where = f" (line {row.line})" if row.line else ""
    return [
        s.Answer(
            f"importing modules took {seconds(took)} of this run's {seconds(r.wall.seconds)}{where};"
            " the next run does not pay it",
            line=row.line,
        )
    ]
