// Architectures of GPUs as numbers, ten times major plus minor of the compute capability (80 is
// 8.0), and those that a program has kernels for.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace bev {

// The architecture that the portable kernels begin with.
inline constexpr int kLeastArch = 80;

// Whether a program that nvcc compiled for `archs`, CMAKE_CUDA_ARCHITECTURES with commas
// ("80,86-real,90a-real"), has kernels for a GPU of architecture `arch`. Machine code runs on its
// major version from its minor version on, that of a name with a letter on this one only; a name
// without -real also stands for PTX, which all later GPUs compile.
bool archs_fit(std::string_view archs, int arch);

// The list for people: "80 86 90a".
std::string archs_text(std::string_view archs);

// The most shared memory, in bytes, that a block can have on this architecture.
std::size_t block_shared_memory(int arch);

}  // namespace bev
