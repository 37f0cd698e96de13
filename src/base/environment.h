// Environment variables of this process.
#pragma once

#include <map>
#include <string>

namespace bev {

std::map<std::string, std::string> environment_variables();

}  // namespace bev
