// Sets of code points that regular expressions call by name.
#pragma once

#include <optional>
#include <string_view>

#include "tokenizer/code_point_set.h"

namespace bev {

// What \p{NAME} means, and what [:NAME:] does; empty for a name that is not known.
std::optional<CodePointSet> property_set(std::string_view name);
std::optional<CodePointSet> posix_set(std::string_view name);

CodePointSet hexadecimal_set();

}  // namespace bev
