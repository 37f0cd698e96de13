// Counts in messages: "1 document", "2 documents".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/text.h"

namespace bev {

// The number and the noun, whose plural ends in s.
inline std::string count_of(std::int64_t count, std::string_view noun) {
  return concat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace bev
