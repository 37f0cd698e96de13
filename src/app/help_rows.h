// The flags of commands as rows of text, from which help, flag reference, manual page and shell
// completion are made.
#pragma once

#include <string>
#include <vector>

#include "app/command.h"

namespace bev {

// A field or a shorthand.
struct HelpRow {
  std::string section;
  std::vector<std::string> flags;  // the first is the name
  std::string type, value, help;

  bool takes_value() const { return type != "flag" && type != "shorthand"; }
  // The words a value may be; empty if it is not one of a few.
  std::vector<std::string> choices() const;
  // The help text with the default, if there is one worth saying.
  std::string text() const;
};

std::vector<HelpRow> help_rows(const Command& command);

// A row, and the commands that have it.
struct SharedRow {
  HelpRow row;
  std::vector<std::string> commands;
};
// The rows of all commands, each once.
std::vector<SharedRow> all_help_rows();

// Names of the section's commands: "`train`, `score`" with backticks around each.
std::vector<std::string> commands_with(const std::string& section);

}  // namespace bev
