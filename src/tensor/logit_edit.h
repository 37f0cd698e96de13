// Changes of single logits.
#pragma once

#include <cstdint>

namespace bev {

// Added to the logit of a token; -infinity forbids it.
struct LogitEdit {
  std::int32_t token = 0;
  float bias = 0;
};

}  // namespace bev
