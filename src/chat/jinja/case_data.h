// Characters whose upper or title case consists of several characters.
#pragma once

#include <string_view>

#include "tokenizer/text/utf8.h"

namespace bev::jinja {

struct LongCase {
  CodePoint point = 0;
  std::string_view upper, title;
};
// nullptr if the mapping is one to one.
const LongCase* find_long_case(CodePoint point);

}  // namespace bev::jinja
