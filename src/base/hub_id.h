// Names of the Hugging Face hub where the path of a folder is wanted.
#pragma once

#include <string>
#include <string_view>

namespace bev {

// For a path that is not there but looks like a name of the hub ("meta-llama/Llama-3.2-1B"): how to
// download it, as "; ..."; else "".
std::string hub_hint(std::string_view path);

}  // namespace bev
