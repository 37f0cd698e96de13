// Named sets of code points in regular expressions.
#pragma once

#include <optional>
#include <string_view>

#include "tokenizer/text/code_point_set.h"

namespace bev {

// Meaning of \p{NAME} and of [:NAME:]; nullopt for an unknown name.
std::optional<CodePointSet> property_set(std::string_view name);
std::optional<CodePointSet> posix_set(std::string_view name);

CodePointSet hexadecimal_set();

}  // namespace bev
