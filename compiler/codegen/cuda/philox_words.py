"""Random numbers of torch's kernels in CUDA C++ (ops/philox.py), and truth values of four neighbours.

A counter gives the words of four neighbours. Four lanes hold sixteen columns of a row, and each computes one counter's
words. A lane holds two neighbours in each half of the columns, so that what it needs are the bits of two lanes. Bytes
of bool tensors go the same way.
"""

from __future__ import annotations

__all__ = ["FUNCTIONS"]

FUNCTIONS = {
    "kept": (
        """u32 kept(u64 seed, u64 counter, const u32 (&at)[2], u32 threads, u32 vector, u32 threshold) {  // of two \
rows: which words, from `at` on, are below
  u32 bits = 0, k0 = (u32)seed, k1 = (u32)(seed >> 32), c[2][4];
  asm volatile("" : "+r"(k0), "+r"(k1));   // (the keys of all rounds would take registers through all tiles)
  for (int i = 0; i < 2; i++) {
    u32 unit = at[i] / vector;
    u64 step = counter + (unit / threads * (vector / 4) + at[i] % vector / 4);
    c[i][0] = (u32)step, c[i][1] = (u32)(step >> 32), c[i][2] = unit % threads, c[i][3] = 0;
  }
  #pragma unroll
  for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
    for (int i = 0; i < 2; i++) {
      u64 p = (u64)c[i][0] * 0xD2511F53u, q = (u64)c[i][2] * 0xCD9E8D57u;
      c[i][0] = (u32)(q >> 32) ^ c[i][1] ^ k0, c[i][1] = (u32)q, c[i][2] = (u32)(p >> 32) ^ c[i][3] ^ k1, c[i][3] = \
(u32)p;
    }
  #pragma unroll
  for (int i = 0; i < 8; i++) bits |= (c[i / 4][i % 4] < threshold) << i;
  return bits;
}"""
    ),
    # (multiplied, bit n of a nibble goes to byte n, or back)
    "from_bytes": ("u32 from_bytes(u32 bytes) { return bytes * 0x204081u >> 21 & 15; }"),
    "to_bytes": "u32 to_bytes(u32 four) { return (four & 15) * 0x204081u & 0x01010101u; }",
    "exchanged": (
        """void exchanged(u32 fours, u32 lane, u32 (&of)[2]) {  // `fours`: of two rows; bits of the two columns that \
this lane holds, in either half
  of[0] = __shfl_sync(~0u, fours, lane & 28 | lane % 4 / 2) >> lane % 2 * 2;
  of[1] = __shfl_sync(~0u, fours, lane & 28 | 2 | lane % 4 / 2) >> lane % 2 * 2;
}"""
    ),
    "eights": (
        """void eights(u32 both, u32 lane, u32 &left, u32 &right) {  // `both`: fours of two times 16 columns; those \
of the eight columns that this lane stores
  left = __shfl_sync(~0u, both, lane & 28 | lane % 2 * 2) >> lane % 4 / 2 * 8;
  right = __shfl_sync(~0u, both, lane & 28 | lane % 2 * 2 | 1) >> lane % 4 / 2 * 8;
}"""
    ),
}
