// Gated delta mixers of a model, with Megatron's sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bev {

class FieldList;

struct DeltaConfig {
  static constexpr const char* kSection = "linear attention";  // flag section

  std::int64_t conv_kernel = 4;
  std::int64_t key_head_dim = 128, value_head_dim = 128;
  std::int64_t num_key_heads = 16, num_value_heads = 32;

  void fields(FieldList& list);

  std::int64_t key_columns() const { return num_key_heads * key_head_dim; }
  std::int64_t value_columns() const { return num_value_heads * value_head_dim; }
  std::int64_t conv_columns() const { return 2 * key_columns() + value_columns(); }
  // All inconsistencies, each with the values and the fix.
  std::vector<std::string> problems() const;
};

}  // namespace bev
