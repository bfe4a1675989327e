/* What a manifest is read with: JSON, SHA-256, and expressions over sizes. Part of tcompile_package.cpp. */
#pragma once

#include "tcompile_package.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

namespace tcompile {
namespace {

/* ---- JSON */
struct Json {
  enum Kind { Null, Bool, Int, Real, Text, List, Map } kind = Null;
  int64_t whole = 0;
  double real = 0;
  std::string text;
  std::vector<Json> items;
  std::vector<std::string> keys;

  const Json* find(const std::string& key) const {
    for (size_t i = 0; i < keys.size(); i++)
      if (keys[i] == key)
        return &items[i];
    return nullptr;
  }
  const Json& operator[](const char* key) const {
    const Json* found = find(key);
    if (!found)
      throw PackageError(std::string("the manifest lacks ") + key);
    return *found;
  }
  const Json& operator[](size_t i) const { return items.at(i); }
  size_t size() const { return items.size(); }
  std::vector<int64_t> wholes() const {
    std::vector<int64_t> out;
    for (auto& x : items)
      out.push_back(x.whole);
    return out;
  }
};

class Reader {
 public:
  explicit Reader(const std::string& s) : at(s.data()), end(s.data() + s.size()) {}
  Json value() {
    skip();
    Json v;
    switch (peek()) {
      case '{':
        v.kind = Json::Map;
        many('}', [&] {
          skip();
          v.keys.push_back(text());
          skip();
          take(':');
          v.items.push_back(value());
        });
        return v;
      case '[':
        v.kind = Json::List;
        many(']', [&] { v.items.push_back(value()); });
        return v;
      case '"':
        v.kind = Json::Text;
        v.text = text();
        return v;
      case 't':
        word("true");
        v.kind = Json::Bool;
        v.whole = 1;
        return v;
      case 'f':
        word("false");
        v.kind = Json::Bool;
        return v;
      case 'n':
        word("null");
        return v;
      default:
        return number();
    }
  }

 private:
  const char *at, *end;

  char peek() { return at < end ? *at : '\0'; }
  void skip() {
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r'))
      at++;
  }
  void take(char c) {
    if (peek() != c)
      throw PackageError("the manifest is no JSON");
    at++;
  }
  void word(const char* w) {
    for (; *w; w++)
      take(*w);
  }
  template <class F>
  void many(char close, F item) {
    at++;
    for (skip(); peek() != close; skip()) {
      item();
      skip();
      if (peek() != close)
        take(',');
    }
    at++;
  }
  std::string text() {
    take('"');
    std::string out;
    while (peek() != '"') {
      char c = peek();
      take(c);
      if (c == '\0')
        throw PackageError("the manifest is no JSON");
      if (c != '\\') {
        out += c;
        continue;
      }
      c = peek();
      take(c);
      if (c == 'u') {
        if (end - at < 4)
          throw PackageError("the manifest is no JSON");
        unsigned code = std::strtoul(std::string(at, 4).c_str(), nullptr, 16);
        at += 4;
        if (code < 0x80)
          out += char(code);
        else if (code < 0x800)
          (out += char(0xC0 | code >> 6)) += char(0x80 | (code & 63));
        else
          ((out += char(0xE0 | code >> 12)) += char(0x80 | (code >> 6 & 63))) += char(0x80 | (code & 63));
      } else {
        out += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c == 'b' ? '\b' : c == 'f' ? '\f' : c;
      }
    }
    at++;
    return out;
  }
  Json number() {
    std::string s;
    bool real = false;
    while (at < end && std::strchr("+-0123456789.eE", *at)) {
      real |= *at == '.' || *at == 'e' || *at == 'E';
      s += *at++;
    }
    if (s.empty())
      throw PackageError("the manifest is no JSON");
    Json v;
    v.kind = real ? Json::Real : Json::Int;
    v.whole = std::strtoll(s.c_str(), nullptr, 10);
    v.real = std::strtod(s.c_str(), nullptr);
    return v;
  }
};

/* ---- files and checksums */
std::string read_file(const std::string& path) {
  std::ifstream f(path, std::ios::binary);
  if (!f)
    throw PackageError(path + " is not there, or may not be read");
  return std::string(std::istreambuf_iterator<char>(f), std::istreambuf_iterator<char>());
}

std::string sha256(const std::string& data) {
  static const uint32_t k[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string m = data;
  m += char(0x80);
  while (m.size() % 64 != 56)
    m += '\0';
  for (int i = 7; i >= 0; i--)
    m += char((uint64_t(data.size()) * 8) >> (8 * i));
  auto turned = [](uint32_t x, int n) { return x >> n | x << (32 - n); };
  for (size_t block = 0; block < m.size(); block += 64) {
    uint32_t w[64], v[8];
    const unsigned char* p = reinterpret_cast<const unsigned char*>(m.data()) + block;
    for (int i = 0; i < 16; i++, p += 4)
      w[i] = uint32_t(p[0]) << 24 | uint32_t(p[1]) << 16 | uint32_t(p[2]) << 8 | p[3];
    for (int i = 16; i < 64; i++)
      w[i] = w[i - 16] + (turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
          (turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10);
    std::memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
      uint32_t a = v[0], e = v[4];
      uint32_t one = v[7] + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
      uint32_t two = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
      std::memmove(v + 1, v, 7 * sizeof *v);
      v[4] += one;
      v[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
      h[i] += v[i];
  }
  char out[65];
  for (int i = 0; i < 8; i++)
    std::snprintf(out + 8 * i, 9, "%08x", h[i]);
  return out;
}

/* ---- sizes */
using Names = std::map<std::string, int>; /* of sizes -> where their values are */

/* An expression of compiler/symbolic as a tree: ["add", a, b], ["sym", "s0"], 4. */
struct Size {
  std::string op; /* "": the number `value`; "sym": the size of that place */
  int64_t value = 0;
  std::vector<Size> of;

  bool fixed() const { return op.empty(); }
  bool bare() const { return op == "sym"; }

  int64_t at(const std::vector<int64_t>& sizes) const {
    if (fixed())
      return value;
    if (bare())
      return sizes[value];
    if (op == "ite")
      return of[of[0].at(sizes) ? 1 : 2].at(sizes);
    int64_t a = of[0].at(sizes);
    for (size_t i = 1; i < of.size(); i++)
      a = both(a, of[i].at(sizes));
    return a;
  }

 private:
  static void fits(bool overflow) {
    if (overflow)
      throw ArgumentError("sizes do not fit 64 bits");
  }
  int64_t both(int64_t a, int64_t b) const {
    int64_t r = 0;
    if (op == "add") {
      fits(__builtin_add_overflow(a, b, &r));
      return r;
    }
    if (op == "mul") {
      fits(__builtin_mul_overflow(a, b, &r));
      return r;
    }
    if (op == "floordiv" || op == "mod") {
      fits(b == 0 || (b == -1 && a == INT64_MIN));
      int64_t q = a / b - ((a % b != 0) & ((a < 0) != (b < 0)));
      return op == "mod" ? a - q * b : q;
    }
    if (op == "lshift") {
      fits(b < 0 || b > 62 || __builtin_mul_overflow(a, int64_t(1) << b, &r));
      return r;
    }
    return op == "bitand" ? a & b
        : op == "min"     ? std::min(a, b)
        : op == "max"     ? std::max(a, b)
        : op == "eq"      ? a == b
        : op == "ne"      ? a != b
        : op == "le"      ? a <= b
        : op == "and"     ? a && b
                          : a || b;
  }
};

Size size_of(const Json& j, const Names& names) {
  Size s;
  if (j.kind != Json::List) {
    s.value = j.whole;
    return s;
  }
  s.op = j[size_t(0)].text;
  if (s.bare()) {
    auto found = names.find(j[1].text);
    if (found == names.end())
      throw PackageError("no argument gives the size " + j[1].text);
    s.value = found->second;
    return s;
  }
  for (size_t i = 1; i < j.size(); i++)
    s.of.push_back(size_of(j[i], names));
  return s;
}

std::vector<Size> sizes_of(const Json& j, const Names& names) {
  std::vector<Size> out;
  for (auto& x : j.items)
    out.push_back(size_of(x, names));
  return out;
}

}  // namespace
}  // namespace tcompile
