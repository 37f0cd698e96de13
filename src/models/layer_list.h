// Lists with a number for each layer, as Megatron's scripts write them.
#pragma once

#include <string>
#include <string_view>

namespace bev {

// Returns a number or a plain list unchanged, and a Python expression like ([0]*3+[1]*58) as the
// list it evaluates to. For Field::reads.
std::string read_layer_list(std::string_view text, std::string& problem);

}  // namespace bev
