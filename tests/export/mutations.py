"""Loads and calls damaged program files, in a process of its own: `python mutations.py FOLDER SEED COUNT`.

FOLDER holds pairs `k.program`, `k.arguments.pt`. Each mutation changes one to three places of the program's JSON, or
bytes of the file. Loading raises ExportError or gives a program; calling raises what operators raise, or gives plain
data. Nothing is imported, opened or started meanwhile, and no mode of the process changes. Prints what was broken, and
exits with 1 where anything was.
"""

import copy
import faulthandler
import io
import json
import math
import os
import random
import re
import resource
import sys
import threading
import warnings
import zipfile

import torch

import tcompile
from tcompile.compiler.errors import ExportError

WORDS = [
    "",
    "self",
    "x",
    "torch",
    "__class__",
    "__globals__",
    "__dict__",
    "__init__",
    "_parameters",
    "os",
    "eval",
    "class",
    "a b",
    "a\nb",
    "a.b.c",
    "\x00",
    "\ud800",
    "\u2028",
    "../../x",
    "ops:inductor::_reinterpret_tensor",
    "ops:inductor::_alloc_from_pool.default",
    "torch:load",
    "torch:from_file",
    "method:set_",
    "method:resize_",
    "operator:pow",
    "operator:mul",
    "operator:lshift",
    "operator:attrgetter",
    "state:_set_grad_enabled",
    "torch:set_num_threads",
    "torch:set_default_dtype",
    "torch:manual_seed",
    "ops:aten::set_.source_Storage",
    "torch._C._nn:_parse_to",
    "torch.nn.functional:os",
    "getattr",
    "call_method",
    "placeholder",
    "output",
    "sym",
    "s0",
    "lshift",
    "mul",
    "pow",
    "argument",
    "state",
    "size",
    "number",
    "const",
    "namedtuple",
    "record",
    "item",
    "attr",
    "sizes",
    "keys",
    "len",
    "type",
    "x" * 5000,
    "\uff58",
    "\uff43data",
    "\u017felf",
]
NUMBERS = [
    0,
    1,
    -1,
    2,
    7,
    63,
    64,
    2**31,
    2**40,
    2**62,
    2**63,
    2**64,
    -(2**63),
    10**30,
    10**9,
    0.5,
    -1e308,
    1e-300,
    True,
    False,
]
VALUES = [
    None,
    [],
    {},
    [[]],
    {"tuple": []},
    {"float": "nan"},
    {"float": "1"},
    {"complex": [1, 2]},
    {"ellipsis": 1},
    {"torch": "torch.sparse_coo"},
    {"torch": "torch.qint8"},
    {"device": "cuda:999"},
    {"device": "lazy"},
    {"slice": [1, 2, 3]},
    {"slice": [1, 2, 3, 4]},
    {"size": [1, -1]},
    {"range": [0, 10**12, 1]},
    {"range": [1, 2, 0]},
    {"set": [[1]]},
    {"dict": [[[1], 2]]},
    {"node": "x"},
    {"node": []},
    ["sym", "s0"],
    ["mul", 2**60, 2**60, 2**60],
    ["lshift", 1, 10**6],
    ["floordiv", 1, 0],
    ["attr", "__class__"],
    ["item", "a"],
    {"tuple": [["attr", "grad_fn"]]},
    {"tuple": [10, 10**9]},
    {"tuple": [{"node": "x"}, 10**9]},
]


def places(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, v in items:
        yield from places(v, (*at, key))


def get(value, at):
    for key in at:
        value = value[key]
    return value


def mutate(text, rnd):
    for _ in range(rnd.choice((1, 1, 1, 2, 3))):
        spots = [p for p in places(text) if p]
        at = rnd.choice(spots)
        owner, key, kind = get(text, at[:-1]), at[-1], rnd.random()
        if kind < 0.25:
            owner[key] = copy.deepcopy(rnd.choice(VALUES))
        elif kind < 0.45:
            owner[key] = rnd.choice(NUMBERS)
        elif kind < 0.65:
            owner[key] = rnd.choice(WORDS)
        elif kind < 0.80:
            owner[key] = copy.deepcopy(get(text, rnd.choice(spots)))
        elif kind < 0.87:
            del owner[key]
        elif kind < 0.94 and isinstance(owner, list):
            owner.insert(rnd.randrange(len(owner) + 1), copy.deepcopy(get(text, rnd.choice(spots))))
        elif isinstance(owner[key], int) and not isinstance(owner[key], bool):
            owner[key] += rnd.choice((-1, 1))
        else:
            owner[key] = f"nested {rnd.choice((2, 40, 120, 3000))}"
    return re.sub(r'"nested (\d+)"', lambda m: "[" * int(m[1]) + "]" * int(m[1]), json.dumps(text))


def plain(value, depth=0):
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(plain(v, depth + 1) for v in value)
    if isinstance(value, dict):
        return all(plain(k, depth + 1) and plain(v, depth + 1) for k, v in value.items())
    return (
        value is None
        or value is ...
        or isinstance(
            value,
            (
                bool,
                int,
                float,
                complex,
                str,
                torch.Tensor,
                torch.dtype,
                torch.device,
                torch.layout,
                torch.memory_format,
                slice,
                range,
                torch.Size,
            ),
        )
    )


def modes():
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_autocast_enabled("cpu"),
        threading.active_count(),
        torch.is_inference_mode_enabled(),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.get_default_device(),
    )


def archive(entries):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as z:
        for name, data in entries.items():
            z.writestr(name, data)
    return bytearray(buffer.getvalue())


# the last ones of an operator's
EXPECTED = (ExportError, RuntimeError, IndexError, ValueError, NotImplementedError, ArithmeticError)
TORCH = os.path.dirname(torch.__file__)
WATCHED = (
    "open",
    "import",
    "ctypes.dlopen",
    "ctypes.call_function",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.remove",
    "os.rename",
    "os.mkdir",
    "socket.connect",
    "pickle.find_class",
)


def main(folder, seed, count):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    soft = resource.getrlimit(resource.RLIMIT_AS)[1]
    programs = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".program"):
            with zipfile.ZipFile(os.path.join(folder, name)) as z:
                entries = {n: z.read(n) for n in z.namelist()}
            given = torch.load(os.path.join(folder, name.replace(".program", ".arguments.pt")), weights_only=True)
            programs.append((entries, given))
            try:  # what the whole file imports and opens it may
                tcompile.load_exported(os.path.join(folder, name), backend="eager")(*given)
            except Exception as e:
                raise SystemExit(f"{name}: {e}")
    target = os.path.join(folder, "mutated")
    with open(target, "wb") as f:
        f.write(b"PK")
    for _ in range(2):  # and what refusals do
        try:
            tcompile.load_exported(target)
        except ExportError:
            pass
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, soft))
    before, bad, watching, seen = modes(), [], [False], []

    def audit(event, args):
        own = (
            event == "open"
            and (str(args[0]) == target or str(args[0]).startswith(TORCH))
            or event == "import"
            and args[0].startswith("torch.")
        )
        if watching[0] and event in WATCHED and not own:  # (some of torch's operators import parts of torch)
            seen.append((event, str(args)[:100]))

    sys.addaudithook(audit)
    loaded = ran = 0
    for k in range(count):
        rnd = random.Random(seed * 1_000_003 + k)
        entries, given = rnd.choice(programs)
        entries = dict(entries)
        if rnd.random() < 0.9:
            entries["program.json"] = mutate(json.loads(entries["program.json"]), rnd).encode()
            data = archive(entries)
        else:
            data = archive(entries)
            for _ in range(rnd.choice((1, 2, 8))):
                data[rnd.randrange(len(data))] = rnd.randrange(256)
        with open(target, "wb") as f:
            f.write(data)
        given = [copy.deepcopy(a) for a in given]
        watching[0] = True
        print(k, end=" ", flush=True)  # (the last one of a process that ended)
        faulthandler.dump_traceback_later(20, exit=True)
        where = "load"
        try:
            program = tcompile.load_exported(target, backend="eager")
            loaded, where = loaded + 1, "call"
            if '"while_loop"' in entries["program.json"].decode(errors="replace"):
                continue  # it may run for ever
            result = program(*given)
            ran += 1
            if not plain(result):
                bad.append((k, "result", type(result).__name__))
        except ExportError as e:
            if "\n" in str(e) and where == "load" and len(str(e)) > 4000:
                bad.append((k, where, "a long message"))
        except EXPECTED as e:
            if where == "load":
                bad.append((k, where, repr(e)[:200]))
        except BaseException as e:
            bad.append((k, where, repr(e)[:200]))
        finally:
            faulthandler.cancel_dump_traceback_later()
            watching[0] = False
        if seen:
            bad.append((k, where, seen[:3]))
            seen.clear()
        if modes() != before:
            bad.append((k, "modes", modes()))
            torch.set_grad_enabled(before[0])
        if len(bad) > 20:
            break
    print()
    for b in bad:
        print(b)
    print(
        f"{count} mutations, {loaded} loaded, {ran} ran; peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB"
    )
    return 1 if bad or not math.isfinite(ran) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
