#include "app/commands/commands.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "app/help.h"
#include "app/options.h"
#include "base/colours.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/log.h"
#include "base/output.h"
#include "base/text.h"

namespace bev {

namespace {

constexpr auto kCommands = std::to_array<const Command*>({
#define BEV_COMMAND(command) &command,
#include "app/commands/commands.def"
});

// Settings that must agree between all processes of a run; threads and logs may differ.
Settings shared_settings(const Command& command, const FieldList& fields, const Options& options) {
  Settings settings = {std::string(command.name)};
  for (const Setting& setting : options.settings()) {
    const std::string& section = fields.find_entry(setting.field)->section;
    if (section == "logging" || setting.field == "num-threads") continue;
    settings.push_back(concat("--", setting.field, " ", join(setting.values, ",")));
  }
  std::ranges::sort(settings);
  return settings;
}

}  // namespace

std::span<const Command* const> commands() { return kCommands; }

const Command& find_command(std::string_view name) {
  auto found = std::ranges::find(kCommands, name, &Command::name);
  if (found != kCommands.end()) return **found;
  std::vector<std::string> names;
  for (const Command* command : kCommands) names.emplace_back(command->name);
  std::string nearest = nearest_name(name, names);
  BEV_FAIL(ErrorKind::kConfig, "'", name, "' is not a command; ",
           nearest.empty() ? concat("there are ", join(names, ", "))
                           : concat("did you mean ", nearest, "?"));
}

const Command& find_command(std::span<const std::string> arguments) {
  if (arguments.size() > 1) {
    auto found =
        std::ranges::find(kCommands, concat(arguments[0], " ", arguments[1]), &Command::name);
    if (found != kCommands.end()) return **found;
  }
  for (const Command* command : kCommands) {
    BEV_CHECK(!command->name.starts_with(arguments[0] + " "), ErrorKind::kConfig, "'", arguments[0],
              "' is the first word of a command; did you mean ", command->name, "?");
  }
  return find_command(arguments[0]);
}

std::size_t word_count(const Command& command) { return split(command.name, ' ').size(); }

int run_command(const Command& command, std::span<const std::string> arguments, Launch launch) {
  std::unique_ptr<CommandCall> call = command.call(launch);
  FieldList fields;
  call->fields(fields);
  Options options = parse_options(fields, arguments, command.words);
  if (options.help()) {
    write_stdout(help_text(command, has_colours(STDOUT_FILENO)));
    return kExitOk;
  }
  if (launch.process == 0) {
    for (const std::string& note : options.notes()) log_warning(note);
  }
  launch.settings = shared_settings(command, fields, options);
  return call->run({launch, fields, options});
}

}  // namespace bev
