// runner FOLDER ARGUMENTS RESULTS SEED: a list of lists of arguments; of each call its results and the arguments
// afterwards, then the state.
#include <ATen/ATen.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <fstream>
#include <iostream>

#include "tcompile_package.h"

static std::vector<c10::IValue> items(const c10::IValue& v) {
  return v.isTuple() ? v.toTupleRef().elements().vec() : v.toListRef().vec();
}

static c10::IValue list_of(const std::vector<c10::IValue>& values) {
  c10::impl::GenericList list(c10::AnyType::get());
  for (auto& v : values)
    list.push_back(v);
  return list;
}

int main(int, char** argv) try {
  std::ifstream in(argv[2], std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
  auto program = tcompile::Package::load(argv[1], true);
  std::vector<c10::IValue> out;
  for (auto& call : items(torch::jit::pickle_load(bytes))) {
    at::manual_seed(std::stoi(argv[4]));
    auto arguments = items(call);
    auto results = program.run(arguments);
    out.push_back(list_of({list_of(results), list_of(arguments)}));
  }
  std::vector<c10::IValue> state;
  for (auto& [name, tensor] : program.state())
    state.push_back(list_of({name, tensor.clone()}));
  auto saved = torch::jit::pickle_save(list_of({list_of(out), list_of(state)}));
  std::ofstream(argv[3], std::ios::binary).write(saved.data(), saved.size());
  return 0;
} catch (const std::exception& e) {
  std::cout << e.what() << "\n";
  return 1;
}
