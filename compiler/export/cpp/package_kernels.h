/* The kernels of a package: generated code of the CPU, and cubins. Part of tcompile_package.cpp. */
#pragma once

#include "package_text.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>

namespace tcompile {
namespace {

struct Kernel {
  std::string name;
  virtual ~Kernel() = default;
  virtual void run(void* const* buffer, const int64_t* size) const = 0;
};

/* ---- the CPU: the ABI of compiler/codegen/cpp/printer.py */
class CpuKernel : public Kernel {
 public:
  CpuKernel(const Json& row, const std::string& folder) {
    name = row["name"].text;
    std::string file = folder + "/" + row["file"].text;
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library)
      throw PackageError(std::string("the kernel ") + name + " does not load: " + dlerror());
    for (auto& p : row["phases"].items)
      phases.push_back(reinterpret_cast<Phase>(symbol(library, p.text)));
    plan = reinterpret_cast<PlanFn>(symbol(library, row["plan"].text));
    for (auto& c : row["checks"].items)
      checks.push_back(c.text);
    most_threads = row["threads"].whole;
  }

  void run(void* const* buffer, const int64_t* size) const override {
    std::vector<int64_t> told(1 + 2 * phases.size());
    plan(size, told.data());
    std::unique_ptr<char[]> scratch(told[0] > 0 ? new char[told[0]] : nullptr);
    for (size_t i = 0; i < phases.size(); i++) {
      int failed = phase(phases[i], buffer, size, scratch.get(), told[1 + 2 * i], told[2 + 2 * i]);
      if (failed > 0)
        throw std::runtime_error(checks.at(failed - 1));
    }
  }

 private:
  using Phase = int (*)(void* const*, const int64_t*, const void*, char*, int64_t, int64_t);
  using PlanFn = void (*)(const int64_t*, int64_t*);
  static constexpr double SERIAL_PS = 12e6, PER_THREAD_PS = 5e6; /* as compiler/native/launcher.c */
  std::vector<Phase> phases;
  PlanFn plan;
  std::vector<std::string> checks;
  int64_t most_threads;

  void* symbol(void* library, const std::string& wanted) {
    void* found = dlsym(library, wanted.c_str());
    if (!found)
      throw PackageError("the kernel " + name + " lacks a function");
    return found;
  }

  int phase(Phase fn, void* const* buffer, const int64_t* size, char* scratch, int64_t items, int64_t item_ps) const {
    if (items <= 0)
      return 0;
    double total = double(items) * double(item_ps);
    int64_t threads = std::min<int64_t>({at::get_num_threads(), items, int64_t(total / PER_THREAD_PS)});
    if (most_threads > 0)
      threads = std::min(threads, most_threads);
    if (threads < 2 || total <= SERIAL_PS || at::in_parallel_region())
      return fn(buffer, size, nullptr, scratch, 0, items);
    std::atomic<int> failed{0};
    at::parallel_for(0, items, (items + threads - 1) / threads, [&](int64_t begin, int64_t end) {
      int rc = fn(buffer, size, nullptr, scratch, begin, end);
      if (rc)
        failed = rc;
    });
    return failed;
  }
};

/* ---- GPUs, by the driver that torch has loaded */
using Handle = void*;

struct Driver {
  int (*module_load)(Handle*, const void*);
  int (*module_function)(Handle*, Handle, const char*);
  int (*function_set)(Handle, int, int);
  int (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, void**);
  int (*launch_with)(const void*, Handle, void**, void**);
  int (*error_string)(int, const char**);
  int (*device)(int*);
  int (*attribute)(int*, int, int);
  int (*tile_map)(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*, int,
                  int, int, int);
  int (*stream)(int32_t, void**);

  void check(int rc, const std::string& what) const {
    const char* words = nullptr;
    if (rc) {
      error_string(rc, &words);
      throw std::runtime_error("CUDA error in " + what + ": " + (words ? words : "unknown"));
    }
  }
};

const Driver& driver() {
  static const Driver made = [] {
    Driver d;
    void* lib = dlopen("libcuda.so.1", RTLD_NOW);
    auto find = [&](auto& field, const char* name, void* from) {
      field = reinterpret_cast<std::decay_t<decltype(field)>>(from ? dlsym(from, name) : nullptr);
      if (!field)
        throw PackageError(std::string("the package runs on a GPU, and there is no ") + name);
    };
    find(d.module_load, "cuModuleLoadData", lib);
    find(d.module_function, "cuModuleGetFunction", lib);
    find(d.function_set, "cuFuncSetAttribute", lib);
    find(d.launch, "cuLaunchKernel", lib);
    find(d.error_string, "cuGetErrorString", lib);
    find(d.device, "cuCtxGetDevice", lib);
    find(d.attribute, "cuDeviceGetAttribute", lib);
    d.launch_with = reinterpret_cast<decltype(d.launch_with)>(dlsym(lib, "cuLaunchKernelEx"));
    d.tile_map = reinterpret_cast<decltype(d.tile_map)>(dlsym(lib, "cuTensorMapEncodeTiled"));
    find(d.stream, "aoti_torch_get_current_cuda_stream", dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD));
    return d;
  }();
  return made;
}

/* One form of a kernel: for aligned buffers, or for any. See compiler/native/cuda_kernel.c. */
class CudaForm {
 public:
  CudaForm(const Json& row, const Json& form, const std::string& folder, int device)
      : name(row["name"].text), device(device) {
    Names names;
    for (auto& s : row["sizes"].items)
      names.emplace(s.text, int(names.size()));
    kinds = form["kinds"].text;
    offsets = sizes_of(form["offsets"], names);
    limits = sizes_of(form["limits"], names);
    for (auto& p : form["parts"].items) {
      std::string code = read_file(folder + "/" + p["file"].text);
      Part part;
      Handle module;
      driver().check(driver().module_load(&module, code.data()), name);
      driver().check(driver().module_function(&part.function, module, p["entry"].text.c_str()), name);
      part.shared = unsigned(p["shared"].whole);
      part.threads = unsigned(p["threads"].whole);
      part.waits = p["waits"].whole;
      part.grid = size_of(p["grid"], names);
      if (part.shared > 48 * 1024)
        driver().check(driver().function_set(part.function, MAX_DYNAMIC_SHARED, int(part.shared)), name);
      parts.push_back(part);
    }
    for (auto& w : form["walks"].items)
      walks.push_back(w.wholes());
  }

  void run(void* const* buffer, int n_buffers, const int64_t* size, int n_sizes) const {
    std::vector<int64_t> sizes(size, size + n_sizes);
    for (auto& l : limits)
      if (l.at(sizes) >= INT32_LIMIT)
        throw std::runtime_error("kernel " + name + " of a package was made for sizes that 32-bit indices hold");
    std::vector<Handle> pointers(buffer, buffer + n_buffers);
    at::Tensor scratch;
    if (offsets.size() > 1) {
      scratch = at::empty({offsets.back().at(sizes)}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA, device));
      for (size_t i = 0; i + 1 < offsets.size(); i++)
        pointers.push_back(static_cast<char*>(scratch.data_ptr()) + offsets[i].at(sizes));
    }
    std::vector<Handle> unused(MAX_WALKS, nullptr); /* Triton's scratch for descriptors and for profiles */
    struct alignas(64) Map {
      char bytes[128];
    };
    std::array<Map, MAX_WALKS> maps;
    std::vector<void*> arguments;
    for (auto& p : pointers)
      arguments.push_back(&p);
    for (auto& s : sizes) /* (32 bits are the first of the 64) */
      arguments.push_back(&s);
    for (int i = 0; i < MAX_WALKS; i++)
      arguments.push_back(size_t(i) < walks.size() ? static_cast<void*>(&maps[i]) : &unused[i]);
    for (size_t i = 0; i < walks.size(); i++)
      encode(walks[i], buffer, &maps[i]);
    Handle stream;
    if (driver().stream(device, &stream))
      throw std::runtime_error("torch gave no current CUDA stream");
    for (auto& p : parts) {
      int64_t grid = p.grid.at(sizes);
      if (grid <= 0)
        continue;
      if (grid > 0x7fffffff)
        throw std::runtime_error("kernel " + name + " needs more programs than a launch holds");
      LaunchAttribute early = {STARTS_EARLY, 0, 1, {0}};
      LaunchConfig config = {{unsigned(grid), 1, 1}, {p.threads, 1, 1}, p.shared, stream, &early, 1};
      driver().check(p.waits && driver().launch_with
                         ? driver().launch_with(&config, p.function, arguments.data(), nullptr)
                         : driver().launch(p.function, unsigned(grid), 1, 1, p.threads, 1, 1, p.shared, stream,
                                           arguments.data(), nullptr),
                     name);
    }
  }

 private:
  struct Part {
    Handle function;
    unsigned threads, shared;
    bool waits;
    Size grid;
  };
  /* CUlaunchConfig and its one attribute */
  struct LaunchAttribute {
    int id, pad, allowed, more[15];
  };
  struct LaunchConfig {
    unsigned grid[3], block[3], shared;
    Handle stream;
    LaunchAttribute* attributes;
    unsigned n_attributes;
  };
  enum {
    MAX_DYNAMIC_SHARED = 8,
    STARTS_EARLY = 6,
    MAX_WALKS = 4,
    SWIZZLE_128B = 3,
    PROMOTE_128B = 2,
    INT32_LIMIT = 0x7ff00000
  };

  std::string name, kinds;
  int device;
  std::vector<Size> offsets, limits;
  std::vector<Part> parts;
  std::vector<std::vector<int64_t>> walks; /* buffer, type, offset, length, lines, stride, box */

  void encode(const std::vector<int64_t>& w, void* const* buffer, void* map) const {
    static const uint32_t one[2] = {1, 1};
    if (!driver().tile_map)
      throw std::runtime_error("this driver has no cuTensorMapEncodeTiled");
    uint64_t dims[2] = {uint64_t(w[3]), uint64_t(w[4])}, stride = uint64_t(w[5]);
    uint32_t box[2] = {uint32_t(w[6]), uint32_t(w[7])};
    void* address = static_cast<char*>(buffer[w[0]]) + w[2];
    driver().check(
        driver().tile_map(map, int(w[1]), 2, address, dims, &stride, box, one, 0, SWIZZLE_128B, PROMOTE_128B, 0), name);
  }
};

class CudaKernel : public Kernel {
 public:
  CudaKernel(const Json& row, const std::string& folder, int device)
      : n_buffers(int(row["buffers"].whole)), n_sizes(int(row["sizes"].size())) {
    name = row["name"].text;
    for (auto& form : row["forms"].items)
      forms.emplace_back(row, form, folder, device);
  }
  void run(void* const* buffer, const int64_t* size) const override {
    uintptr_t low = 0;
    for (int i = 0; i < n_buffers; i++)
      low |= reinterpret_cast<uintptr_t>(buffer[i]);
    forms[(low & 15) && forms.size() > 1].run(buffer, n_buffers, size, n_sizes);
  }

 private:
  int n_buffers, n_sizes;
  std::vector<CudaForm> forms;
};

}  // namespace
}  // namespace tcompile
