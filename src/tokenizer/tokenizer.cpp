#include "tokenizer/tokenizer.h"

namespace bev {

void Tokenizer::add_special_tokens(std::vector<std::int32_t>&) const {}

bool Tokenizer::is_special(std::int32_t) const { return false; }

}  // namespace bev
