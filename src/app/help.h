// Help texts generated from the commands and their fields: `bevatron help` and docs/flags.md.
#pragma once

#include <string>

#include "app/command.h"

namespace bev {

std::string help_text();
std::string help_text(const Command& command);
// The content of docs/flags.md: a table for each section.
std::string flags_markdown();

}  // namespace bev
