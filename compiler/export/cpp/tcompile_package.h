/* Packages of tcompile in C++: what `tcompile.export(...).package(folder)` wrote, run with at::Tensor.

     auto program = tcompile::Package::load("folder", true);
     std::vector<at::Tensor> results = program({x});

   Compile tcompile_package.cpp with your program, as C++17 (C++20 where your libtorch asks for it), against libtorch;
   no Python, no compiler and no CUDA headers are needed. With -fopenmp kernels of the CPU run on torch's threads.
   `python -c "import tcompile; print(tcompile.cpp_path())"` says where both files are. */
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tcompile {

/* A folder that is no package, is damaged, or was made for another machine or torch. */
struct PackageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/* Arguments that the program was not exported for: the words name the argument. */
struct ArgumentError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct PackageData;

/* Calls from several threads at once are safe, unless the program changes its state or its arguments. */
class Package {
 public:
  /* The folder holds machine code: load one only from whom you trust. Its checksums find damage, not malice. A warning
     on stderr says so unless `trusted`. Each is checked before anything runs. `device`: which GPU, -1: the current one.
     `weights`: where the tensors of the state are, if not where the package says. */
  static Package load(const std::string& folder, bool trusted = false, int device = -1,
                      const std::string& weights = "");

  /* Arguments are the tensors and whole numbers among those of the exported function, in the order of `argument_names`;
     results are those of `result_names`: tensors, numbers, None. The program computes no gradients. */
  std::vector<c10::IValue> run(const std::vector<c10::IValue>& arguments) const;

  /* The same for tensors alone: results that are none are left out. */
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& arguments) const;

  const std::string& name() const;
  const std::vector<std::string>& argument_names() const;
  const std::vector<std::string>& result_names() const;

  /* Parameters, buffers and tensors that the function held, by name. The program computes with these very tensors. */
  const std::map<std::string, at::Tensor>& state() const;

 private:
  std::shared_ptr<const PackageData> data_;
};

}  // namespace tcompile
