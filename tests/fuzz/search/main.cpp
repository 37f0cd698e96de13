// The readers of targets.h under libFuzzer, which looks for bytes that take new ways through them.
//   fuzz_search --readers                            the readers' names
//   fuzz_search --reader=NAME [--seeds=FOLDER] ...   flags and folders of libFuzzer; the reader's
//                                                    seeds are written to FOLDER first
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "tests/fuzz/targets.h"

namespace bev::test {
namespace {

const FuzzTarget* chosen = nullptr;  // libFuzzer calls plain functions

void write_seeds(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const std::string& seed : chosen->seeds) {
    std::string name = "seed" + std::to_string(number++);
    std::ofstream(folder / name, std::ios::binary) << seed;
  }
}

void read_arguments(std::vector<std::string_view> arguments) {
  // libFuzzer starts itself again with all arguments, so they stay as they are.
  auto value_of = [&](std::string_view flag) {
    auto found =
        std::ranges::find_if(arguments, [&](std::string_view a) { return a.starts_with(flag); });
    return found == arguments.end() ? std::string_view() : found->substr(flag.size());
  };
  if (std::ranges::find(arguments, "--readers") != arguments.end()) {
    for (const FuzzTarget& target : fuzz_targets()) std::cout << target.name << "\n";
    std::exit(0);
  }
  chosen = &find_target(value_of("--reader="));
  if (std::string_view folder = value_of("--seeds="); !folder.empty()) write_seeds(folder);
}

}  // namespace
}  // namespace bev::test

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  bev::test::read_arguments({*arguments, *arguments + *count});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  bev::test::chosen->run({reinterpret_cast<const char*>(data), size});
  return 0;
}
