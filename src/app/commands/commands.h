// The registry of commands listed in commands.def: lookup by name, and execution.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "app/command.h"

namespace bev {

#define BEV_COMMAND(command) extern const Command command;
#include "app/commands/commands.def"

std::span<const Command* const> commands();
// Throws Error(kConfig) that suggests the nearest name.
const Command& find_command(std::string_view name);
// The command named by the first one or two arguments.
const Command& find_command(std::span<const std::string> arguments);
std::size_t word_count(const Command& command);

// Parses the arguments after the command's name and runs it, or prints its help if they ask for it.
// Returns the exit code or throws.
int run_command(const Command& command, std::span<const std::string> arguments, Launch launch = {});

}  // namespace bev
