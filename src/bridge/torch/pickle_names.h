// Names of Python classes and functions that checkpoints may refer to.
#pragma once

#include <string_view>

namespace bev {

bool is_known_python_name(std::string_view module_and_name);

}  // namespace bev
