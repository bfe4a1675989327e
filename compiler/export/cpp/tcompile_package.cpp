/* A package: its manifest, the checks of its arguments, and its plan (compiler/runtime/plan_parts.py) run with
 * at::Tensor. */
#include "../../native/blas.h"
#include "package_calls.h"
#include "package_kernels.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/DeviceGuard.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <sys/utsname.h>

#include <algorithm>
#include <iostream>
#include <set>

namespace tcompile {
namespace {

const char* const KIND = "tcompile.package";
enum { FORMAT = 1 };

struct Argument {
  std::string name, size; /* size: of a whole number */
  at::ScalarType dtype = at::kFloat;
  std::string device;
  std::vector<Size> shape, stride;
  bool in_place = false, strided = false; /* strided: the plan reads it, and relies on its strides */
};

struct Input {
  enum { ARGUMENT, STATE, SIZE } kind;
  int index;
};

struct Slot {
  int kind, index, itemsize, ndim, dims, offset;
  at::ScalarType dtype;
};

struct Step {
  int kind = 0, slot = 0;
  const Kernel* kernel = nullptr;
  std::vector<int> slots, sizes;
  int blas = 0; /* 1 + the number of the dtype where BLAS may compute the product */
  double beta = 0, alpha = 0;
  Call call;
};

struct Output {
  int kind = 0, index = 0;
  Call call;
};

struct Result {
  std::string name, kind;
  int index;
  Size size;
  c10::IValue constant;
};

}  // namespace

struct PackageData {
  std::string name;
  at::Device place = at::kCPU;
  std::vector<at::Tensor> tensors;
  std::map<std::string, at::Tensor> state;
  std::vector<Argument> arguments;
  std::vector<std::string> argument_names, result_names;
  Names sizes;
  std::vector<std::pair<Size, std::string>> conditions;
  std::vector<std::pair<int, int>> apart;
  std::vector<Input> inputs;
  std::vector<std::unique_ptr<Kernel>> kernels;
  std::vector<Operator> operators;
  std::vector<Size> values;
  std::vector<Slot> slots;
  std::vector<Step> steps;
  std::vector<Output> outputs;
  std::vector<c10::IValue> constants;
  std::vector<Result> results;
  int scratch = -1;

  [[noreturn]] void refuse(const Argument& a, const std::string& expected, const std::string& got) const {
    throw ArgumentError(name + ": argument `" + a.name + "`: expected " + expected + ", got " + got);
  }
};

namespace {

const BlasApi& blas() {
  static const BlasApi made = [] {
    BlasApi api;
    void* lib = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
    auto find = [&](const char* name) { return dlsym(lib ? lib : RTLD_DEFAULT, name); };
    BLAS_FIND(&api, find);
    return api;
  }();
  return made;
}

/* ---- arguments */
template <class T>
std::string text(const T& x) {
  std::ostringstream s;
  s << x;
  return s.str();
}

void bind(const PackageData& p, const Argument& a, const std::string& size, int64_t value, std::vector<int64_t>& sizes,
          std::set<std::string>& bound) {
  int64_t& known = sizes[p.sizes.at(size)];
  if (!bound.insert(size).second && known != value)
    p.refuse(a, size + " = " + text(known), text(value));
  if (size[0] != 'z' && value < 2)
    p.refuse(a, "a size of 2 or more", text(value));
  known = value;
}

void check_tensor(const PackageData& p, const Argument& a, const c10::IValue& v, std::vector<int64_t>& sizes,
                  std::set<std::string>& bound) {
  if (!v.isTensor() || !v.toTensor().defined())
    p.refuse(a, "a tensor", v.tagKind());
  const at::Tensor& t = v.toTensor();
  if (t.scalar_type() != a.dtype)
    p.refuse(a, c10::toString(a.dtype), c10::toString(t.scalar_type()));
  at::Device wanted = a.device == "cpu" ? at::Device(at::kCPU) : p.place;
  if (t.device() != wanted)
    p.refuse(a, "a tensor on " + wanted.str(), "one on " + t.device().str());
  if (t.layout() != at::kStrided || t.is_conj() || t.is_neg())
    p.refuse(a, "a plain dense tensor", "one of another kind");
  if (t.requires_grad() && at::GradMode::is_enabled())
    throw ArgumentError(p.name + ": argument `" + a.name +
                        "` requires a gradient, and a package computes none: use at::NoGradGuard");
  if (t.dim() != int64_t(a.shape.size()))
    p.refuse(a, text(a.shape.size()) + " dimensions", text(t.dim()));
  for (int64_t d = 0; d < t.dim(); d++) {
    if (a.shape[d].bare()) {
      for (auto& [size, at] : p.sizes)
        if (at == a.shape[d].value)
          bind(p, a, size, t.size(d), sizes, bound);
    } else if (a.shape[d].fixed() && a.shape[d].value != t.size(d)) {
      p.refuse(a, "size " + text(a.shape[d].value) + " in dimension " + text(d), text(t.size(d)));
    }
  }
}

/* The tensor as the plan wants it: a copy where only its strides differ, and nothing is written to it. */
at::Tensor laid_out(const PackageData& p, const Argument& a, const at::Tensor& t, const std::vector<int64_t>& sizes) {
  bool fits = true;
  std::vector<int64_t> shape, stride;
  for (size_t d = 0; d < a.shape.size(); d++) {
    shape.push_back(a.shape[d].at(sizes));
    if (shape[d] != t.size(d))
      p.refuse(a, "size " + text(shape[d]) + " in dimension " + text(d), text(t.size(d)));
    if (a.strided)
      stride.push_back(a.stride[d].at(sizes));
    fits &= !a.strided || stride[d] == t.stride(d);
  }
  if (fits)
    return t;
  if (a.in_place)
    p.refuse(a, "strides " + text(at::IntArrayRef(stride)) + ", since the program writes to it or returns it",
             text(t.strides()));
  return at::empty_strided(shape, stride, t.options()).copy_(t);
}

std::pair<uintptr_t, uintptr_t> memory(const at::Tensor& t) {
  uintptr_t begin = reinterpret_cast<uintptr_t>(t.const_data_ptr());
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); d++)
    last += (t.size(d) - 1) * t.stride(d);
  return {begin, t.numel() ? begin + (last + 1) * t.element_size() : begin};
}

std::vector<int64_t> checked(const PackageData& p, std::vector<c10::IValue>& given) {
  if (given.size() != p.arguments.size())
    throw ArgumentError(p.name + " takes " + text(p.arguments.size()) + " arguments, got " + text(given.size()));
  std::vector<int64_t> sizes(p.sizes.size());
  std::set<std::string> bound;
  for (size_t i = 0; i < given.size(); i++) {
    const Argument& a = p.arguments[i];
    if (a.size.empty()) {
      check_tensor(p, a, given[i], sizes, bound);
    } else {
      if (!given[i].isInt())
        p.refuse(a, "a whole number", given[i].tagKind());
      bind(p, a, a.size, given[i].toInt(), sizes, bound);
    }
  }
  for (auto& [condition, where] : p.conditions)
    if (!condition.at(sizes))
      throw ArgumentError(p.name + ": the sizes do not fit what " + (where.empty() ? "the program" : where) +
                          " relies on");
  for (auto [a, b] : p.apart) {
    auto [a0, a1] = memory(given[a].toTensor());
    auto [b0, b1] = memory(given[b].toTensor());
    if (a0 < b1 && b0 < a1)
      p.refuse(p.arguments[a], "memory of its own, beside `" + p.arguments[b].name + "`", "shared memory");
  }
  for (size_t i = 0; i < given.size(); i++)
    if (given[i].isTensor())
      given[i] = laid_out(p, p.arguments[i], given[i].toTensor(), sizes);
  return sizes;
}

/* ---- one call */
class Frame {
 public:
  Frame(const PackageData& p, const std::vector<c10::IValue>& given, const std::vector<int64_t>& sizes) : p(p) {
    for (auto& e : p.values)
      value.push_back(e.at(sizes));
    for (auto& i : p.inputs)
      input.push_back(i.kind == Input::ARGUMENT ? given[i.index]
                      : i.kind == Input::STATE  ? c10::IValue(p.tensors[i.index])
                                                : c10::IValue(sizes[i.index]));
    tensor.resize(p.slots.size());
    data.resize(p.slots.size());
    if (p.scratch >= 0 && value[p.scratch] > 0)
      scratch = at::empty({value[p.scratch] + 256}, at::TensorOptions().dtype(at::kByte).device(p.place));
    char* block = scratch.defined() ? static_cast<char*>(scratch.data_ptr()) : nullptr;
    block += -reinterpret_cast<uintptr_t>(block) & 255; /* places are multiples of 64 or 256 bytes */
    for (size_t i = 0; i < p.slots.size(); i++) {
      const Slot& s = p.slots[i];
      if (s.kind == SLOT_INPUT || s.kind == SLOT_CONSTANT)
        put(int(i), (s.kind == SLOT_INPUT ? input[s.index] : p.constants[s.index]).toTensor());
      else if (s.kind == SLOT_SCRATCH)
        data[i] = block + value[s.offset];
    }
  }

  std::vector<c10::IValue> run() {
    std::vector<void*> buffer;
    std::vector<int64_t> size;
    for (auto& s : p.steps) {
      switch (s.kind) {
        case STEP_KERNEL:
          buffer.clear();
          size.clear();
          for (int slot : s.slots)
            buffer.push_back(data_of(slot));
          for (int v : s.sizes)
            size.push_back(value[v]);
          s.kernel->run(buffer.data(), size.data());
          break;
        case STEP_MAKE:
          put(s.slot, at::empty_strided(shape(s.slot), stride(s.slot), options(s.slot)));
          break;
        case STEP_FREE:
          tensor[s.slot] = at::Tensor();
          break;
        case STEP_CALL:
          if (!s.blas || !by_blas || !multiplied(s))
            accept(s.call, called(s.call));
          break;
        default:
          break;
      }
    }
    std::vector<c10::IValue> out;
    for (auto& o : p.outputs)
      out.push_back(
          o.kind == OUT_SLOT           ? c10::IValue(tensor_of(o.index))
              : o.kind == OUT_INPUT    ? input[o.index]
              : o.kind == OUT_VALUE    ? c10::IValue(value[o.index])
              : o.kind == OUT_CONSTANT ? p.constants[o.index]
                                       : called(o.call).at(0));
    return out;
  }

 private:
  const PackageData& p;
  std::vector<int64_t> value;
  std::vector<c10::IValue> input;
  std::vector<at::Tensor> tensor; /* by slot */
  std::vector<void*> data;
  at::Tensor scratch;
  bool by_blas = p.place.is_cpu() && blas_allowed(&blas());

  bool multiplied(const Step& s) const {
    auto matrix = [&](int slot) { return BlasMatrix{data_of(slot), value.data() + p.slots[slot].dims}; };
    bool sum = s.slots.size() == 4;
    return !blas_product(&blas(), s.blas - 1, matrix(s.slots[0]), matrix(s.slots[sum + 1]), matrix(s.slots[sum + 2]),
                         sum ? matrix(s.slots[1]) : BlasMatrix{nullptr, nullptr},
                         sum ? p.slots[s.slots[1]].ndim : 0, s.beta, s.alpha);
  }

  at::IntArrayRef shape(int at) const { return {value.data() + p.slots[at].dims, size_t(p.slots[at].ndim)}; }
  at::IntArrayRef stride(int at) const {
    return {value.data() + p.slots[at].dims + p.slots[at].ndim, size_t(p.slots[at].ndim)};
  }
  at::TensorOptions options(int at) const { return at::TensorOptions().dtype(p.slots[at].dtype).device(p.place); }

  void put(int at, const at::Tensor& t) {
    tensor[at] = t;
    data[at] = t.defined() && t.layout() == at::kStrided ? t.mutable_data_ptr() : nullptr;
  }

  void* data_of(int at) const {
    const Slot& s = p.slots[at];
    return s.kind == SLOT_ALIAS ? static_cast<char*>(data[s.index]) + value[s.offset] : data[at];
  }

  const at::Tensor& tensor_of(int at) {
    const Slot& s = p.slots[at];
    if (tensor[at].defined() || s.kind == SLOT_RESULT) /* (an operator left it out) */
      return tensor[at];
    const at::Tensor* base = s.kind == SLOT_ALIAS && tensor[s.index].defined() ? &tensor[s.index] : nullptr;
    if (base && base->scalar_type() == s.dtype)
      return tensor[at] =
                 base->as_strided(shape(at), stride(at), base->storage_offset() + value[s.offset] / s.itemsize);
    return tensor[at] = at::from_blob(data_of(at), shape(at), stride(at), [](void*) {}, options(at), p.place);
  }

  c10::IValue argument(const Arg& a, const c10::TypePtr& type) {
    if (a.kind == ARG_LIST || a.kind == ARG_TUPLE) {
      std::vector<c10::IValue> items;
      for (auto& item : a.items)
        items.push_back(argument(item, nullptr));
      return type ? as_list(items, type) : as_list(items, c10::ListType::create(c10::AnyType::get()));
    }
    c10::IValue v = a.kind == ARG_OBJECT ? a.constant
        : a.kind == ARG_SLOT             ? c10::IValue(tensor_of(a.index))
        : a.kind == ARG_VALUE            ? c10::IValue(value[a.index])
                                         : input[a.index];
    return type ? as_type(v, type) : v;
  }

  std::vector<c10::IValue> called(const Call& c) {
    std::vector<c10::IValue> stack;
    if (!c.op->handle) {
      for (auto& a : c.args)
        stack.push_back(argument(a, nullptr));
      if (c.op->name == "count") {
        count(stack);
        return {};
      }
      return {c.op->name == "view" ? c10::IValue(view_of(stack)) : c10::IValue(draw(c, stack))};
    }
    auto& schema = c.op->handle->schema().arguments();
    stack.resize(schema.size());
    std::vector<bool> given(schema.size());
    for (size_t i = 0; i < c.args.size(); i++) {
      stack[c.at[i]] = argument(c.args[i], schema[c.at[i]].type());
      given[c.at[i]] = true;
    }
    for (size_t i = 0; i < schema.size(); i++)
      if (!given[i] && schema[i].default_value())
        stack[i] = *schema[i].default_value();
    c.op->handle->callBoxed(stack);
    return stack;
  }

  at::Tensor draw(const Call& c, const std::vector<c10::IValue>& args) { return tcompile::draw(args, p.place); }

  /* What a call gave, into slots. Kernels address memory by the strides that were planned, and torch's kernels may
   * choose others. */
  void accept(const Call& c, std::vector<c10::IValue> gave) {
    if (c.outs.empty())
      return;
    if (!c.single && gave.size() == 1 && gave[0].isTensorList()) {
      std::vector<c10::IValue> items;
      for (const at::Tensor& t : gave[0].toTensorVector())
        items.emplace_back(t);
      gave = items;
    }
    if (gave.size() != c.outs.size())
      throw PackageError(c.op->name + " gave " + text(gave.size()) + " results where " + text(c.outs.size()) +
                         " were planned");
    for (size_t i = 0; i < gave.size(); i++) {
      int at = c.outs[i];
      if (at < 0 || !gave[i].isTensor() || !gave[i].toTensor().defined())
        continue;
      at::Tensor t = gave[i].toTensor();
      if (t.layout() == at::kStrided && !(t.sizes() == shape(at) && t.strides() == stride(at)))
        t = at::empty_strided(shape(at), stride(at), t.options()).copy_(t);
      put(at, t);
    }
  }
};

/* ---- reading */
std::vector<int> ints(const Json& j) {
  std::vector<int> out;
  for (auto& x : j.items)
    out.push_back(int(x.whole));
  return out;
}

void check_machine(const Json& needs, const std::string& folder, int device, PackageData& p) {
  utsname u;
  uname(&u);
  std::string here = (std::string(u.sysname) == "Linux" ? "linux " : std::string(u.sysname) + " ") + u.machine;
  if (needs["system"].text != here)
    throw PackageError(folder + " was made for " + needs["system"].text + ", and here is " + here);
  if (needs["device"].text == "cpu") {
    std::set<std::string> have;
    std::istringstream lines(needs["features"].size() ? read_file("/proc/cpuinfo") : "");
    for (std::string line, word; have.empty() && std::getline(lines, line);)
      if (line.rfind("flags", 0) == 0 || line.rfind("Features", 0) == 0)
        for (std::istringstream words(line); words >> word;)
          have.insert(word);
    for (auto& f : needs["features"].items)
      if (!have.count(f.text))
        throw PackageError(folder + " was made for a processor with " + f.text + ", which this one lacks");
    return;
  }
  int arch[2] = {0, 0}, current = 0;
  at::empty({1}, at::TensorOptions().device(at::kCUDA)); /* torch makes the context */
  driver().check(driver().device(&current), "cuCtxGetDevice");
  p.place = at::Device(at::kCUDA, at::DeviceIndex(device < 0 ? current : device));
  for (int i = 0; i < 2; i++) /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and MINOR */
    driver().check(driver().attribute(&arch[i], 75 + i, p.place.index()), "cuDeviceGetAttribute");
  if (needs["arch"].whole != 10 * arch[0] + arch[1])
    throw PackageError(folder + " was made for sm_" + text(needs["arch"].whole) + ", and " + p.place.str() + " is sm_" +
                       text(10 * arch[0] + arch[1]));
}

void read_tensors(const Json& m, const std::string& file, PackageData& p) {
  std::ifstream f(file, std::ios::binary | std::ios::ate);
  const Json& wanted = m["weights"];
  if (!f)
    throw PackageError("the package's weights are not there: " + file);
  int64_t bytes = int64_t(f.tellg());
  if (bytes != wanted["bytes"].whole)
    throw PackageError(file + " is damaged, or of another package: " + text(bytes) + " bytes where " +
                       text(wanted["bytes"].whole) + " are due");
  at::Tensor words = at::empty({0}, at::kLong);
  if (bytes)
    words = at::from_file(file, false, bytes / 8, at::kLong); /* pages that are copied only where they are written to */
  at::Tensor there = words.to(p.place); /* in one piece */
  if (there.sum().item<int64_t>() != wanted["sum"].whole)
    throw PackageError(file + " is damaged, or of another package: its checksum does not match");
  for (auto& t : m["tensors"].items) {
    at::Tensor data = (t["device"].text == "cpu" ? words : there).view(at::kByte);
    at::Tensor flat = data.narrow(0, t["offset"].whole, t["bytes"].whole).view(at::ScalarType(t["dtype"].whole));
    p.tensors.push_back(flat.as_strided(t["shape"].wholes(), t["stride"].wholes(), flat.storage_offset()));
  }
  for (size_t i = 0; i < m["state"].size(); i++)
    p.state.emplace(m["state"].keys[i], p.tensors.at(m["state"][i].whole));
}

void read_arguments(const Json& m, PackageData& p) {
  auto name = [&](const std::string& size) { p.sizes.emplace(size, int(p.sizes.size())); };
  for (auto& a : m["arguments"].items) {
    if (const Json* size = a.find("size"))
      name(size->text);
    else
      for (auto& s : a["shape"].items)
        if (s.kind == Json::List && s[size_t(0)].text == "sym")
          name(s[1].text);
  }
  for (auto& a : m["arguments"].items) {
    Argument made;
    made.name = a["name"].text;
    if (const Json* size = a.find("size")) {
      made.size = size->text;
    } else {
      made.dtype = at::ScalarType(a["dtype"].whole);
      made.device = a["device"].text;
      made.shape = sizes_of(a["shape"], p.sizes);
      if (const Json* stride = a.find("stride")) {
        made.strided = true;
        made.stride = sizes_of(*stride, p.sizes);
        made.in_place = a["in_place"].whole;
      }
    }
    p.argument_names.push_back(made.name);
    p.arguments.push_back(made);
  }
  for (auto& c : m["sizes"].items)
    p.conditions.emplace_back(size_of(c[size_t(0)], p.sizes), c[1].text);
  for (auto& pair : m["apart"].items)
    p.apart.emplace_back(pair[size_t(0)].whole, pair[1].whole);
  for (auto& i : m["inputs"].items) {
    const Json& of = i[size_t(0)];
    if (i.keys.at(0) == "size")
      p.inputs.push_back({Input::SIZE, p.sizes.at(of.text)});
    else
      p.inputs.push_back({i.keys[0] == "state" ? Input::STATE : Input::ARGUMENT, int(of.whole)});
  }
  for (auto& r : m["results"].items) {
    Result made{r[size_t(0)].text, r[1].text, 0, {}, {}};
    if (made.kind == "const")
      made.constant =
          r[2].kind == Json::Map || r[2].kind == Json::List ? c10::IValue() : constant_of(r[2], p.tensors, p.place);
    else if (made.kind == "size")
      made.size = size_of(r[2], p.sizes);
    else
      made.index = int(r[2].whole);
    p.result_names.push_back(made.name);
    p.results.push_back(made);
  }
}

double real_of(const Json& j) { return j.kind == Json::Int ? double(j.whole) : j.real; }

/* Whether BLAS may compute a product: 0, or 1 + the number of its dtype (as in compiler/native/plan_make.c). */
int blas_kind(const PackageData& p, const Step& s, int product) {
  size_t n = product == 0 ? 3 : product == 2 ? 4 : 0;
  if (!n || s.slots.size() != n || !p.place.is_cpu() || !blas().gemm[0])
    return 0;
  int dtype = blas_dtype(int(p.slots.at(s.slots[0]).dtype));
  for (size_t i = 0; i < n; i++) {
    const Slot& slot = p.slots.at(s.slots[i]);
    bool bias = n == 4 && i == 1;
    if (dtype < 0 || blas_dtype(int(slot.dtype)) != dtype || (!i && slot.kind == SLOT_INPUT) ||
        (slot.ndim != 2 && !(bias && slot.ndim == 1)))
      return 0;
  }
  return 1 + dtype;
}

void read_plan(const Json& plan, PackageData& p) {
  std::map<std::string, const Kernel*> kernels;
  for (auto& k : p.kernels)
    kernels[k->name] = k.get();
  for (auto& o : plan["operators"].items)
    p.operators.push_back(operator_of(o));
  auto call = [&](const Json& j) { return call_of(j, p.operators, p.tensors, p.place); };
  p.values = sizes_of(plan["values"], p.sizes);
  for (auto& c : plan["constants"].items)
    p.constants.push_back(constant_of(c, p.tensors, p.place));
  for (auto& s : plan["slots"].items) {
    auto n = ints(s);
    p.slots.push_back({n.at(0), n.at(1), n.at(3), n.at(4), n.at(5), n.at(6), at::ScalarType(n.at(2))});
  }
  for (auto& s : plan["steps"].items) {
    Step made;
    made.kind = int(s[size_t(0)].whole);
    if (made.kind == STEP_KERNEL) {
      made.kernel = kernels.at(s[1].text);
      made.slots = ints(s[2]);
      made.sizes = ints(s[3]);
    } else if (made.kind == STEP_PRODUCT || made.kind == STEP_TORCH) { /* calls like any other, here */
      made.call = call(s[made.kind == STEP_PRODUCT ? 5 : 4]);
      if (made.kind == STEP_PRODUCT) {
        made.slots = ints(s[2]);
        made.beta = real_of(s[3]);
        made.alpha = real_of(s[4]);
        made.blas = blas_kind(p, made, int(s[1].whole));
      }
      made.kind = STEP_CALL;
    } else if (made.kind == STEP_CALL) {
      made.call = call(s[1]);
    } else if (s.size() > 1) {
      made.slot = int(s[1].whole);
    }
    p.steps.push_back(std::move(made));
  }
  for (auto& o : plan["outputs"].items) {
    Output made;
    made.kind = int(o[size_t(0)].whole);
    if (made.kind == OUT_CALL)
      made.call = call(o[1]);
    else
      made.index = int(o[1].whole);
    p.outputs.push_back(std::move(made));
  }
  p.scratch = int(plan["scratch"].whole);
}

}  // namespace

/* ---- what users call */
Package Package::load(const std::string& folder, bool trusted, int device, const std::string& weights) {
  if (!trusted)
    std::cerr << folder
              << " holds machine code, which runs in your process with all that you may do. Its checksum finds damage, "
                 "not malice: load such a "
                 "package only from whom you trust, and pass true for `trusted` then.\n";
  std::string manifest = read_file(folder + "/manifest.json"), wanted = read_file(folder + "/checksum");
  if (sha256(manifest) != wanted.substr(0, 64))
    throw PackageError(folder + " is damaged: the checksum of its manifest does not match");
  Json m = Reader(manifest).value();
  if (m["kind"].text != KIND)
    throw PackageError(folder + " is no package");
  if (m["format"].whole != FORMAT)
    throw PackageError(folder + " has format " + text(m["format"].whole) + "; this program reads format " +
                       text(int(FORMAT)));
  for (size_t i = 0; i < m["files"].size(); i++)
    if (sha256(read_file(folder + "/" + m["files"].keys[i])) != m["files"][i].text)
      throw PackageError(folder + " is damaged: the checksum of " + m["files"].keys[i] +
                         " does not match. None of it was loaded");
  at::NoGradGuard no_gradients;
  auto p = std::make_shared<PackageData>();
  p->name = m["name"].text;
  check_machine(m["needs"], folder, device, *p);
  at::OptionalDeviceGuard guard(p->place.is_cpu() ? std::nullopt : std::optional<at::Device>(p->place));
  read_tensors(m, weights.empty() ? folder + "/" + m["weights"]["file"].text : weights, *p);
  read_arguments(m, *p);
  for (auto& row : m["kernels"].items) {
    if (p->place.is_cpu())
      p->kernels.push_back(std::make_unique<CpuKernel>(row, folder));
    else
      p->kernels.push_back(std::make_unique<CudaKernel>(row, folder, p->place.index()));
  }
  read_plan(m["plan"], *p);
  Package package;
  package.data_ = p;
  return package;
}

std::vector<c10::IValue> Package::run(const std::vector<c10::IValue>& arguments) const {
  const PackageData& p = *data_;
  std::vector<c10::IValue> given = arguments;
  std::vector<int64_t> sizes = checked(p, given);
  at::NoGradGuard no_gradients;
  at::AutoDispatchBelowADInplaceOrView no_records;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  at::OptionalDeviceGuard guard(p.place.is_cpu() ? std::nullopt : std::optional<at::Device>(p.place));
  std::vector<c10::IValue> outputs = Frame(p, given, sizes).run(), results;
  for (auto& r : p.results)
    results.push_back(
        r.kind == "output"         ? outputs.at(r.index)
            : r.kind == "argument" ? arguments.at(r.index)
            : r.kind == "state"    ? c10::IValue(p.tensors.at(r.index))
            : r.kind == "size"     ? c10::IValue(r.size.at(sizes))
                                   : r.constant);
  return results;
}

std::vector<at::Tensor> Package::operator()(const std::vector<at::Tensor>& arguments) const {
  std::vector<at::Tensor> out;
  for (auto& v : run({arguments.begin(), arguments.end()}))
    if (v.isTensor())
      out.push_back(v.toTensor());
  return out;
}

const std::string& Package::name() const { return data_->name; }
const std::vector<std::string>& Package::argument_names() const { return data_->argument_names; }
const std::vector<std::string>& Package::result_names() const { return data_->result_names; }
const std::map<std::string, at::Tensor>& Package::state() const { return data_->state; }

}  // namespace tcompile
