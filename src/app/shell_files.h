// Files for the system that are generated from the commands and their flags: the manual page and
// the completion of shells.
#pragma once

#include <string>

namespace bev {

// The manual page bevatron(1), in roff's man macros.
std::string manual_page();

// Scripts that complete commands, flags and values.
std::string bash_completion();
std::string zsh_completion();
std::string fish_completion();

}  // namespace bev
