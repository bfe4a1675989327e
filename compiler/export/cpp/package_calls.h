/* Calls of torch's operators by name, through its dispatcher. Part of tcompile_package.cpp. */
#pragma once

#include "package_text.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <c10/core/GeneratorImpl.h>

#include <cmath>
#include <mutex>
#include <optional>
#include <sstream>

namespace tcompile {
namespace {

#include "../../native/plan_numbers.h"

/* An argument of a call: of the kinds ARG_*. */
struct Arg {
  int kind = 0;
  int index = 0; /* of a slot, a value, an input */
  c10::IValue constant;
  std::vector<Arg> items;
};

c10::IValue constant_of(const Json& j, const std::vector<at::Tensor>& tensors, at::Device place) {
  switch (j.kind) {
    case Json::Null:
      return {};
    case Json::Bool:
      return bool(j.whole);
    case Json::Int:
      return j.whole;
    case Json::Real:
      return j.real;
    case Json::Text:
      return j.text;
    default:
      break;
  }
  const std::string& kind = j.keys.at(0);
  const Json& of = j[size_t(0)];
  if (kind == "tensor")
    return tensors.at(of.whole);
  if (kind == "number") /* a dtype, a layout, a memory format */
    return of[1].whole;
  if (kind == "device") {
    at::Device d(of.text);
    return d.type() == place.type() ? place : d;
  }
  if (kind == "float")
    return of.text == "nan" ? NAN : of.text == "inf" ? INFINITY : -INFINITY;
  if (kind == "complex")
    return c10::complex<double>(of[size_t(0)].real, of[1].real);
  throw PackageError("the package hands an operator a constant of kind " + kind);
}

Arg arg_of(const Json& j, const std::vector<at::Tensor>& tensors, at::Device place) {
  Arg a;
  a.kind = int(j[size_t(0)].whole);
  if (a.kind == ARG_LIST || a.kind == ARG_TUPLE) {
    for (auto& item : j[1].items)
      a.items.push_back(arg_of(item, tensors, place));
  } else if (a.kind == ARG_OBJECT) {
    a.constant = constant_of(j[1], tensors, place);
  } else {
    a.index = int(j[1].whole);
  }
  return a;
}

/* A value as the schema's type wants it: Python's numbers and lists are of no type yet. */
c10::IValue as_type(const c10::IValue& v, const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      return v.isNone() ? v : as_type(v, type->expectRef<c10::OptionalType>().getElementType());
    case c10::TypeKind::FloatType:
      return v.isInt() ? c10::IValue(double(v.toInt())) : v;
    case c10::TypeKind::BoolType:
      return v.isInt() ? c10::IValue(v.toInt() != 0) : v;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return v.isBool() ? c10::IValue(int64_t(v.toBool())) : v;
    case c10::TypeKind::TensorType:
      return v.isNone() ? c10::IValue(at::Tensor()) : v;
    default:
      return v;
  }
}

c10::IValue as_list(const std::vector<c10::IValue>& items, const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::OptionalType)
    return as_list(items, type->expectRef<c10::OptionalType>().getElementType());
  if (type->kind() != c10::TypeKind::ListType)
    throw PackageError("the package hands an operator a list where it takes " + type->str());
  c10::TypePtr element = type->expectRef<c10::ListType>().getElementType();
  if (element->kind() == c10::TypeKind::SymIntType)
    element = c10::IntType::get();
  c10::impl::GenericList list(element);
  for (auto& v : items)
    list.push_back(element->kind() == c10::TypeKind::OptionalType && v.isNone() ? v : as_type(v, element));
  return list;
}

struct Operator {
  std::string name;
  std::optional<c10::OperatorHandle> handle; /* none: a function of the plan's own */
};

Operator operator_of(const Json& j) {
  Operator o{j[size_t(0)].text, std::nullopt};
  const std::string& schema = j[1].text;
  if (schema.empty())
    return o;
  size_t dot = o.name.find('.');
  std::string base = o.name.substr(0, dot), overload = dot == std::string::npos ? "" : o.name.substr(dot + 1);
  o.handle = c10::Dispatcher::singleton().findSchema({base, overload});
  if (!o.handle)
    throw PackageError("the package calls the operator " + schema + ", which this torch does not have");
  std::ostringstream here;
  here << o.handle->schema();
  if (here.str() != schema)
    throw PackageError("the package calls the operator " + schema + ", which this torch has as " + here.str());
  return o;
}

struct Call {
  const Operator* op = nullptr;
  std::vector<Arg> args;
  std::vector<int> at; /* of each argument, its place in the schema */
  std::vector<int> outs;
  bool single = false;
};

Call call_of(const Json& j, const std::vector<Operator>& operators, const std::vector<at::Tensor>& tensors,
             at::Device place) {
  Call c{&operators.at(j[size_t(0)].whole), {}, {}, {}, j[4].whole != 0};
  for (auto& a : j[1].items)
    c.args.push_back(arg_of(a, tensors, place));
  for (auto& o : j[3].items)
    c.outs.push_back(int(o.whole));
  size_t named = c.args.size() - j[2].size();
  for (size_t i = 0; i < c.args.size(); i++) {
    int at = int(i);
    if (i >= named && c.op->handle) {
      auto found = c.op->handle->schema().argumentIndexWithName(j[2][i - named].text);
      if (!found)
        throw PackageError(c.op->name + " has no argument " + j[2][i - named].text);
      at = *found;
    }
    c.at.push_back(at);
  }
  return c;
}

/* ---- functions of the plan's own */
std::vector<int64_t> wholes(const c10::IValue& v) {
  std::vector<int64_t> out;
  for (const c10::IValue& x : v.toListRef())
    out.push_back(x.toInt());
  return out;
}

/* view_of() of compiler/codegen/host.py: base, shape, stride, offset, dtype or None */
at::Tensor view_of(const std::vector<c10::IValue>& args) {
  at::Tensor base = args.at(0).toTensor();
  std::vector<int64_t> shape = wholes(args.at(1)), stride = wholes(args.at(2));
  int64_t begin = base.storage_offset(), offset = args.at(3).toInt();
  if (args.at(4).isNone())
    return base.as_strided(shape, stride, begin + offset);
  auto dtype = at::ScalarType(args.at(4).toInt());
  int64_t first = begin * base.element_size() / int64_t(c10::elementSize(dtype));
  return at::empty({0}, base.options().dtype(dtype)).set_(base.storage(), first + offset, shape, stride);
}

void count(const std::vector<c10::IValue>& args) {
  for (const c10::IValue& t : args.at(0).toListRef())
    if (!t.toTensor().is_inference())
      t.toTensor().unsafeGetTensorImpl()->bump_version();
}

/* draw() of compiler/ops/philox.py: seed and counter of each draw, and the generator advanced as torch's kernels
 * advance it */
at::Tensor draw(const std::vector<c10::IValue>& args, at::Device place) {
  std::vector<int64_t> increments = wholes(args.at(1)), out;
  at::Generator generator = at::globalContext().defaultGenerator(place);
  std::lock_guard<std::mutex> lock(generator.mutex());
  uint64_t seed = generator.current_seed(), offset = generator.get_offset();
  for (int64_t n : increments) {
    out.push_back(int64_t(seed));
    out.push_back(int64_t(offset / 4));
    offset += uint64_t(n);
  }
  generator.set_offset(offset);
  return at::tensor(out, at::kLong).to(place, true);
}

}  // namespace
}  // namespace tcompile
