"""The text that a kernel's file begins with: types, loads and stores, lanes, masks, conversions.

Everything is keyed; `Support` collects the keys that a kernel uses, each with what it needs in its turn, and prints
them once. The lanes of a vector (`L`) are the same for every type in one kernel, so that conversions never change their
number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Callable, NamedTuple

from ...symbolic.expr import C_HELPERS, Expr
from .math.convert import conversions
from .dtypes import CType

__all__ = ["Target", "Support", "SIGNATURE", "used_sizes"]

MOST_INLINED = 2  # calls of one function in a kernel that are inlined; more become calls
SIGNATURE = (  # of generated functions
    "(void *const *buffer, const i64 *size, const Scalar *param, char *scratch, i64 begin, i64 end)"
)


@dataclass(frozen=True)
class Target:
    """What the machine can do. `width`: bytes of the widest vector register used; `features` as in /proc/cpuinfo."""

    width: int = 16
    features: frozenset[str] = frozenset()

    @property
    def fma(self) -> bool:
        return "fma" in self.features


_SCALARS = {
    "f32": "float",
    "f64": "double",
    "i64": "long long",
    "i32": "int",
    "i16": "short",
    "i8": "signed char",
    "u64": "unsigned long long",
    "u32": "unsigned",
    "u16": "unsigned short",
    "u8": "unsigned char",
}
_BYTES = {"f32": 4, "f64": 8, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u64": 8, "u32": 4, "u16": 2, "u8": 1}

_ACCESS = """\
// Lanes of a vector that take part: all of them, or the first n at the end of a row.
struct All {};
struct First { i64 n; };

template <class V, class T> INLINE V load(const T *p, All) { V v; __builtin_memcpy(&v, p, sizeof v); return v; }
template <class V, class T> INLINE V load(const T *p, First lanes) {
    V v = {};
    __builtin_memcpy(&v, p, lanes.n * sizeof(T));
    return v;
}
// The last n lanes, in their places.
template <class V, class T> INLINE V load_last(const T *p, First lanes) {
    V v = {};
    __builtin_memcpy((T *)&v + (L - lanes.n), p + (L - lanes.n), lanes.n * sizeof(T));
    return v;
}
template <class T, class V> INLINE void store(T *p, V v, All) { __builtin_memcpy(p, &v, sizeof v); }
template <class T, class V> INLINE void store(T *p, V v, First lanes) { __builtin_memcpy(p, &v, lanes.n * sizeof(T)); }
"""
_EACH = """\
// One lane after the other: what has no vector instruction.
GATHER
template <class V, class F> INLINE V gather(First lanes, F f) {
    V v = {};
    for (int k = 0; k < lanes.n; k++) v[k] = f(k);
    return v;
}
template <class F> INLINE void each(All, F f) { _Pragma("GCC unroll 16") for (int k = 0; k < L; k++) f(k); }
template <class F> INLINE void each(First lanes, F f) { for (int k = 0; k < lanes.n; k++) f(k); }
"""
# All lanes as one list: written one after the other into a vector they go through memory, where the read of the whole
# waits for every write. Integers go as floats of their size, which GCC joins in vector registers.
_GATHER = """\
template <int bytes, class T> struct Carried { typedef T type; };
template <class T> struct Carried<4, T> { typedef float type; };
template <class T> struct Carried<8, T> { typedef double type; };
template <class V, class F> INLINE V gather(All, F f) {
    typedef __typeof__(V{}[0]) T;
    typedef typename Carried<sizeof(T), T>::type C;
    typedef C Row __attribute__((vector_size(sizeof(V))));
    auto lane = [&](int k) { T x = f(k); C c; __builtin_memcpy(&c, &x, sizeof c); return c; };
    return (V)Row{LANES};
}"""
_GATHER_AT = """\
// Elements at computed positions.
template <class V, class T> INLINE V gather_at(const T *p, vi64 at, All) {
    return gather<V>(All{}, [&](int k) { return p[at[k]]; });
}
template <class V, class T> INLINE V gather_at(const T *p, vi64 at, First lanes) {
    i64 a[L]; __builtin_memcpy(a, &at, sizeof a); asm("" : "+m"(a));
    V v = {}; for (int k = 0; k < lanes.n; k++) v[k] = p[a[k]];
    return v;
}
"""
_KEEP = """\
// x in the lanes that take part, old in the others.
template <class V> INLINE V keep(All, V x, V) { return x; }
template <class V> INLINE V keep(First lanes, V x, V old) {
    typedef __typeof__(x < x) M;
    M id, n;
    UNROLL for (int k = 0; k < L; k++) id[k] = k, n[k] = lanes.n;
    return id < n ? x : old;
}
"""
_FOLD = """\
// All lanes of a vector into one number, pairwise.
template <class V, class F> INLINE auto fold(V v, F f) {
    UNROLL for (int w = L / 2; w; w /= 2) for (int k = 0; k < w; k++) v[k] = f(v[k], v[k + w]);
    auto first = v[0];
    return first;
}
"""
_WITHIN = """\
// The lanes of the vector that begins `skip` elements further on, where n elements are left.
INLINE First within(i64 n, int skip) { n -= skip; return First{n < 0 ? 0 : n < L ? n : L}; }
template <class V, class T> INLINE V load_some(const T *p, First lanes) {
    return lanes.n == L ? load<V>(p, All{}) : load<V>(p, lanes);
}
template <class T, class V> INLINE void store_some(T *p, V v, First lanes) {
    if (lanes.n == L) store(p, v, All{});
    else store(p, v, lanes);
}
"""
_LANES = """\
INLINE int count(All) { return L; }
INLINE int count(First lanes) { return lanes.n; }
"""
_MASKED = """\
// Reads only where m holds.
template <class V, class M, class W, class F> INLINE V gather_if(M m, W lanes, F f) {
    V v = {};
    if (any(m)) for (int k = 0; k < count(lanes); k++) if (m[k]) v[k] = f(k);
    return v;
}
template <class M> INLINE bool whole(All, M m) { return all(m); }
template <class M> INLINE bool whole(First lanes, M m) { return lanes.n == L && all(m); }
template <class V, class T, class M> INLINE V load_if(const T *p, M m, All lanes) {
    return all(m) ? load<V>(p, lanes) : gather_if<V>(m, lanes, [&](int k) { return p[k]; });
}
template <class V, class T, class M> INLINE V load_if(const T *p, M m, First lanes) {
    return whole(lanes, m) ? load<V>(p, All{}) : gather_if<V>(m, lanes, [&](int k) { return p[k]; });
}
"""
# Reads and writes under a mask by one instruction, which touches nothing that the mask leaves out: (type of its
# elements, its name), by type.
_ENDS = {
    "f32": ("float", "ups"),
    "f64": ("double", "upd"),
    "i8": ("char", "dquqi"),
    "i16": ("short", "dquhi"),
    "i32": ("int", "dqusi"),
    "i64": ("long long", "dqudi"),
}
_MASKS = """\
// Masks: from a comparison of any type, and choosing by one.
template <class M> INLINE vmask mask(M m) { return convert<vmask>(m); }
template <class V> INLINE V where(vmask m, V a, V b) {
    typedef __typeof__(a < a) M;
    return convert<M>(m) ? a : b;
}
"""
_BF16 = """\
INLINE float widen_bf16(u16 h) { u32 b = (u32)h << 16; float f; __builtin_memcpy(&f, &b, 4); return f; }
INLINE u16 narrow_bf16(float f) {          // round to nearest even
    u32 b; __builtin_memcpy(&b, &f, 4);
    return f != f ? 0x7fc0 : (b + 0x7fff + ((b >> 16) & 1)) >> 16;
}
INLINE float round_bf16(float f) { return widen_bf16(narrow_bf16(f)); }
INLINE u16 cut_bf16(float f) { u32 b; __builtin_memcpy(&b, &f, 4); return b >> 16; }     // of a value that fits
"""
_BF16_VECTOR = """\
INLINE vf32 widen_bf16(vu16 h) { return (vf32)(convert<vu32>(h) << 16); }
INLINE vu32 bf16_rounded(vf32 f) {         // to nearest even, in the upper halves
    vu32 b = (vu32)f, r = b + 0x7fff + ((b >> 16) & 1);
    return f == f ? r : vu32{} + 0x7fc00000u;
}
NARROW
INLINE vf32 round_bf16(vf32 f) { return (vf32)(bf16_rounded(f) & 0xffff0000u); }
INLINE vu16 cut_bf16(vf32 f) { return convert<vu16>((vu32)f >> 16); }
"""
_BF16_NARROW = "INLINE vu16 narrow_bf16(vf32 f) { return convert<vu16>(bf16_rounded(f) >> 16); }"
_BF16_NARROW_X86 = """\
INLINE vu16 narrow_bf16(vf32 f) {          // the machine's instruction takes numbers below the normal ones for 0
    vu16 r;
    if (__builtin_expect(__builtin_ia32_fpclassps512_mask(f, 0x20, (u16)-1) != 0, 0))
        return convert<vu16>(bf16_rounded(f) >> 16);
    asm("vcvtneps2bf16 %1, %0" : "=v"(r) : "v"(f));
    return r;
}"""
_F16 = """\
INLINE float widen_f16(u16 h) { _Float16 x; __builtin_memcpy(&x, &h, 2); return (float)x; }
INLINE u16 narrow_f16(float f) { _Float16 x = (_Float16)f; u16 h; __builtin_memcpy(&h, &x, 2); return h; }
INLINE float round_f16(float f) { return (float)(_Float16)f; }
"""
_F16_LANES = """\
INLINE vf32 widen_f16(vu16 h) { vf32 f; UNROLL for (int k = 0; k < L; k++) f[k] = widen_f16(h[k]); return f; }
INLINE vu16 narrow_f16(vf32 f) { vu16 h; UNROLL for (int k = 0; k < L; k++) h[k] = narrow_f16(f[k]); return h; }
"""
_F16_X86 = {
    64: (
        """\
typedef short bits256 __attribute__((vector_size(32)));
INLINE vf32 widen_f16(vu16 h) { return (vf32)__builtin_ia32_vcvtph2ps512_mask((bits256)h, vf32{}, (u16)-1, 4); }
INLINE vu16 narrow_f16(vf32 f) { return (vu16)__builtin_ia32_vcvtps2ph512_mask(f, 0, bits256{}, (u16)-1); }
"""
    ),
    32: (
        """\
typedef short bits128 __attribute__((vector_size(16)));
INLINE vf32 widen_f16(vu16 h) { return (vf32)__builtin_ia32_vcvtph2ps256((bits128)h); }
INLINE vu16 narrow_f16(vf32 f) { return (vu16)__builtin_ia32_vcvtps2ph256(f, 0); }
"""
    ),
}
_F16_ROUND = "INLINE vf32 round_f16(vf32 f) { return widen_f16(narrow_f16(f)); }\n"
_BOOL_VECTOR = """\
INLINE vmask widen_bool(vu8 b) { return convert<vmask>(b) != 0; }
INLINE vu8 narrow_bool(vmask m) { return convert<vu8>(m & 1); }
"""
_ANY = """\
template <class M> INLINE bool any(M m) { return fold(convert<vmask>(m), [](auto a, auto b) { return a | b; }) != 0; }
template <class M> INLINE bool all(M m) { return fold(convert<vmask>(m), [](auto a, auto b) { return a & b; }) != 0; }
"""
_ANY_X86 = {
    (64, 4): (
        "INLINE bool any(vmask m) { return __builtin_ia32_cvtd2mask512(m) != 0; }\n"
        "INLINE bool all(vmask m) { return __builtin_ia32_cvtd2mask512(m) == 0xffff; }\n"
    ),
    (32, 4): (
        "INLINE bool any(vmask m) { return __builtin_ia32_movmskps256((vf32)m) != 0; }\n"
        "INLINE bool all(vmask m) { return __builtin_ia32_movmskps256((vf32)m) == 0xff; }\n"
    ),
    (64, 8): (
        "INLINE bool any(vmask m) { return __builtin_ia32_cvtq2mask512(m) != 0; }\n"
        "INLINE bool all(vmask m) { return __builtin_ia32_cvtq2mask512(m) == 0xff; }\n"
    ),
    (32, 8): (
        "INLINE bool any(vmask m) { return __builtin_ia32_movmskpd256((vf64)m) != 0; }\n"
        "INLINE bool all(vmask m) { return __builtin_ia32_movmskpd256((vf64)m) == 0xf; }\n"
    ),
}
_ATOMIC = """\
// Several threads may add to one element.
template <class T, class F> INLINE void atomic_update(T *p, F f) {
    T old, now;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do now = f(old); while (!__atomic_compare_exchange(p, &old, &now, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}
"""


@dataclass
class Support:
    """Collects what one kernel needs and prints it. `lanes`: elements of every vector in this kernel."""

    target: Target
    lanes: int
    long: set[str] = field(default_factory=set)  # keys of functions of many instructions
    _order: dict[str, str] = field(default_factory=dict)
    _vectors: set[str] = field(default_factory=set)
    _helpers: bool = False

    @property
    def mask_bytes(self) -> int:
        """Bytes of one lane of a mask: those of the widest type, so that a mask fills a register."""
        return min(8, max(1, self.target.width // self.lanes))

    def bytes_of(self, tag: str) -> int:
        return _BYTES[tag] * self.lanes

    def need(self, key: str, text: str | None = None) -> None:
        """Have the text of `key` printed, before anything added later."""
        if key in self._order:
            return
        if text is None:
            text = self._builtin(key)
        self._order[key] = text

    def vector(self, *tags: str) -> None:
        self._vectors.update(tags)

    def index_helpers(self) -> None:
        self._helpers = True

    def _builtin(self, key: str) -> str:
        part = _PARTS[key]
        for other in part.needs:
            self.need(other)
        self.vector(*part.vectors)
        return part.text(self) if callable(part.text) else part.text

    def _masked_loads(self) -> str:
        """`load_if` by one instruction where the machine has such reads."""
        convert = {4: "cvtd2mask512", 8: "cvtq2mask512", 1: "cvtb2mask512", 2: "cvtw2mask512"}[self.mask_bytes]
        if self.mask_bytes * self.lanes != 64 or not {"avx512dq", "avx512bw", "avx512vl"} <= self.target.features:
            return ""
        word = self._lane_bits
        some = "(1ULL << lanes.n) - 1" if self.lanes < 64 else "(lanes.n < 64 ? (1ULL << lanes.n) - 1 : ~0ULL)"
        mask = {1: "char", 2: "short", 4: "int", 8: "long long"}[self.mask_bytes]
        out = [
            (
                f"INLINE {word} bits(vmask m, All) {{ typedef {mask} bits __attribute__((vector_size(64))); return"
                f" __builtin_ia32_{convert}((bits)m); }}"
            ),
            f"INLINE {word} bits(vmask m, First lanes) {{ return bits(m, All{{}}) & ({word})({some}); }}",
        ]
        for tag, element, name in self._masked_types():
            n, t = self.bytes_of(tag), _SCALARS[tag]
            out += [
                f"template <> inline __attribute__((always_inline)) v{tag} load_if<v{tag}, {t}, vmask>(const {t} *p,"
                f" vmask m, {lanes} lanes) {{ typedef {element} row __attribute__((vector_size({n}))); return"
                f" (v{tag})__builtin_ia32_load{name}{8 * n}_mask((const {element} *)p, row{{}}, bits(m, lanes)); }}"
                for lanes in ("All", "First")
            ]
        return "\n" + "\n".join(out)

    @property
    def _lane_bits(self) -> str:
        """The type that has a bit for each lane."""
        return {8: "u8", 16: "u16", 32: "u32", 64: "u64"}[max(8, self.lanes)]

    def _masked_types(self) -> list[tuple[str, str, str]]:
        """The kernel's types whose vectors are read and written under masks: (tag, type of the instruction's elements,
        its name).
        """
        return [
            (scalar, *_ENDS[scalar.replace("u", "i")])
            for scalar in _SCALARS
            if scalar in self._vectors and self.bytes_of(scalar) in (16, 32, 64)
        ]

    def _ends(self) -> str:
        """Reads and writes of the first lanes by one masked instruction, where the machine has it: copies of a few
        bytes through memory stall.
        """
        if not {"avx512bw", "avx512vl"} <= self.target.features:
            return ""
        out = []
        word = self._lane_bits
        for tag, element, name in self._masked_types():
            wanted = (
                f"({word})((1ULL << lanes.n) - 1)"
                if self.lanes < 64
                else "lanes.n < 64 ? (1ULL << lanes.n) - 1 : ~0ULL"
            )
            n, t, v = self.bytes_of(tag), _SCALARS[tag], f"v{tag}"
            bits = f"typedef {element} bits __attribute__((vector_size({n})));"
            head = "template <> inline __attribute__((always_inline))"
            out += [
                (
                    f"{head} {v} load<{v}, {t}>(const {t} *p, First lanes) {{ {bits} "
                    f"return ({v})__builtin_ia32_load{name}{8 * n}_mask((const {element} *)p, bits{{}}, {wanted}); }}"
                ),
                (
                    f"{head} {v} load_last<{v}, {t}>(const {t} *p, First lanes) {{ {bits} return"
                    f" ({v})__builtin_ia32_load{name}{8 * n}_mask((const {element} *)p, bits{{}}, ({word})(({wanted})"
                    " << (L - lanes.n))); }"
                ),
                (
                    f"{head} void store<{t}, {v}>({t} *p, {v} v, First lanes) {{ {bits} "
                    f"__builtin_ia32_store{name}{8 * n}_mask(({element} *)p, (bits)v, {wanted}); }}"
                ),
            ]
        return "\n" + "\n".join(out)

    def call_often_used(self, text: str) -> None:
        """Functions that `text` calls many times become functions of their own: inlined into a chain of hundreds of
        operations they would cost the compiler seconds, and a call costs little beside what they compute."""
        for key, definition in self._order.items():
            if key in self.long:
                name = key.split(".")[0]
                if len(re.findall(rf"\btc::{name}\(", text)) > MOST_INLINED:
                    self._order[key] = re.sub(
                        rf"(?m)^INLINE (?=\w[\w ]* {name}\()", "static __attribute__((noinline)) ", definition
                    )

    def text(self) -> str:
        """The prelude."""
        mask = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}[self.mask_bytes]
        if "convert" in self._order:
            # results of comparisons
            signed = {t.replace("u", "i").replace("f32", "i32").replace("f64", "i64") for t in self._vectors}
            self._order["convert"], tags = conversions(
                {mask, *signed, *self._vectors}, _BYTES, self.lanes, self.target.features
            )
            self.vector(*tags)
        lines = [f"typedef {_SCALARS[t]} {t};" for t in ("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8")]
        lines += [
            "union Scalar { double f; i64 i; };",
            "#define INLINE static inline __attribute__((always_inline))",
            '#define UNROLL _Pragma("GCC unroll 64")',
            "",
            f"enum {{ L = {self.lanes} }};                  // lanes of every vector below",
        ]
        lines += [
            f"typedef {_SCALARS[scalar]} v{scalar} __attribute__((vector_size({self.bytes_of(scalar)})));"
            for scalar in _SCALARS
            if scalar in self._vectors
        ]
        lines += [
            f"typedef {mask} lane_mask;",
            (
                f"typedef {mask} vmask __attribute__((vector_size({self.lanes * self.mask_bytes})));   // -1 where"
                " true, else 0"
            ),
        ]
        if self._order:
            lines += ["", "namespace tc {"]
        machine = {"access": self._ends, "masked": self._masked_loads}
        lines += [
            dim.rstrip("\n") + (machine[key]() if key in machine else "") + "\n" for key, dim in self._order.items()
        ]
        if self._order:
            lines.append("}  // namespace tc")
        if self._helpers:
            lines += ["", C_HELPERS.replace("long long", "i64").rstrip("\n")]
        return "\n".join(lines) + "\n"


class _Part(NamedTuple):
    """A piece of what each kernel's text may begin with."""

    text: str | Callable[[Support], str]
    needs: tuple[str, ...] = ()
    vectors: tuple[str, ...] = ()


def _each(support: Support) -> str:
    return _EACH.replace("GATHER", _GATHER.replace("LANES", ", ".join(f"lane({k})" for k in range(support.lanes))))


def _bf16_vector(support: Support) -> str:
    native = {"avx512_bf16", "avx512dq"} <= support.target.features and support.bytes_of("f32") == 64
    return _BF16_VECTOR.replace("NARROW", _BF16_NARROW_X86 if native else _BF16_NARROW)


def _f16_vector(support: Support) -> str:
    n = support.bytes_of("f32")
    native = (n == 64 and "avx512f" in support.target.features) or (n == 32 and "f16c" in support.target.features)
    return (_F16_X86[n] if native else _F16_LANES) + _F16_ROUND


def _any(support: Support) -> str:
    support.vector("f64" if support.mask_bytes == 8 else "f32")
    special = _ANY_X86.get((support.mask_bytes * support.lanes, support.mask_bytes))
    native = special and ("avx512dq" if support.mask_bytes * support.lanes == 64 else "avx2") in support.target.features
    return (special if native else "") + _ANY


_PARTS = {
    "access": _Part(_ACCESS),
    "each": _Part(_each, ("access",)),
    "gather_at": _Part(_GATHER_AT, ("each",), ("i64",)),
    "keep": _Part(_KEEP, ("access",)),
    "fold": _Part(_FOLD),
    "bf16": _Part(_BF16),
    "f16": _Part(_F16),
    "within": _Part(_WITHIN, ("access",)),
    "lanes": _Part(_LANES, ("access",)),
    "masked": _Part(_MASKED, ("lanes", "any")),
    "convert": _Part(""),  # see text(): it depends on all types of the kernel
    "masks": _Part(_MASKS, ("convert",)),
    "bf16.vector": _Part(_bf16_vector, ("bf16", "convert"), ("f32", "u16", "u32", "i32")),
    "f16.vector": _Part(_f16_vector, ("f16",), ("f32", "u16")),
    "bool.vector": _Part(_BOOL_VECTOR, ("convert",), ("u8",)),
    "any": _Part(_any, ("fold", "convert")),
    "atomic": _Part(_ATOMIC),
}


def vector_type(support: Support, ct: CType) -> str:
    """The vector type of `ct`, with its typedef in the prelude."""
    if ct.kind != "bool":
        support.vector(ct.tag)
    return ct.vector


def used_sizes(sizes: list[Expr], text: list[str]) -> list[str]:
    """Declarations of the sizes that these lines use."""
    words = set(re.findall(r"[A-Za-z_]\w*", "\n".join(text)))
    return [f"    const i64 {size} = size[{n}];" for n, size in enumerate(sizes) if str(size) in words]
