// Small files that are right, for the readers of targets.h to start from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bev::test {

// A file of tests/golden.
std::string golden(std::string_view name);
// Seeds from all models there and all chat templates.
std::vector<std::string> golden_configs();
std::vector<std::string> golden_templates();

// "a" of 2 x 2 f32 and "b" of 3 bf16.
std::string small_safetensors();
// Three sequences of 3, 5 and 8 tokens of 16 bits in two documents, for a file of 32 bytes.
std::string small_index();
// Saved under kArrayKey: one array, of the number 7.
inline constexpr std::uint64_t kArrayKey = 5;
std::string small_array_file();
std::string small_cache();
// A shard that holds the tensor "w" of 2 x 2 f32 in two pieces, and the manifest that goes with a
// shard of these bytes.
std::string small_shard();
std::string small_manifest(std::string_view shard);

}  // namespace bev::test
