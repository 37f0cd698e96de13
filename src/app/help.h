// Help texts generated from the commands and their fields: `bevatron help` and docs/flags.md.
#pragma once

#include <span>
#include <string>

#include "app/command.h"

namespace bev {

// Texts with `colour` have the codes of terminals in them.
std::string help_text(bool colour = false);
// All flags of a command in sections, the usual ones first; or one `section` alone.
std::string help_text(const Command& command, bool colour = false, const std::string& section = "");
// One flag, with or without dashes: its meaning wherever it has one, or what to give instead of it.
// Throws Error(kConfig) if no command has it.
std::string flag_help(const std::string& name, bool colour = false);
// Flags whose names or texts have all of the words.
std::string search_help(std::span<const std::string> words, bool colour = false);
// The known models, the families with what was tested of each, and the notation of layouts.
std::string presets_help();
std::string models_help();
std::string models_json();
std::string layouts_help();
// The content of docs/flags.md: a table for each section.
std::string flags_markdown();

// The text that `bevatron help WORDS` prints.
std::string help_for(std::span<const std::string> words, bool colour);

}  // namespace bev
