// Readers of files from outside, each as a function of the file's bytes. Whatever the bytes are, a
// target returns, soon and in little memory, and says whether it took them: a mistake in them is an
// Error of kind input or config, and anything else that is thrown is a bug of ours.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bev::test {

struct FuzzTarget {
  const char* name;
  bool (*run)(std::string_view bytes);
  std::vector<std::string> seeds;  // small files that are right
};

std::span<const FuzzTarget> fuzz_targets();
// Error(kConfig) when there is none.
const FuzzTarget& find_target(std::string_view name);

}  // namespace bev::test
