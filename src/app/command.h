// A command of the program as one value: name, help texts, flags and the function that runs it.
// Each is defined in the command's own file and listed in commands.def.
#pragma once

#include <memory>
#include <string_view>

#include "comm/launch.h"

namespace bev {

class FieldList;
class Options;

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitInput = 2;
inline constexpr int kExitMismatch = 3;
inline constexpr int kExitSignalBase = 128;

// Input of a command apart from its configuration.
struct CommandInput {
  const Launch& launch;     // how this process was started
  const FieldList& fields;  // of the configuration
  Options& options;         // the flags given; already applied to the configuration
};

// One invocation of a command: a configuration and the function that runs it.
class CommandCall {
 public:
  virtual ~CommandCall() = default;
  virtual void fields(FieldList& list) = 0;
  // Returns the exit code or throws. The command itself resolves presets and model folders and
  // checks rules.
  virtual int run(const CommandInput& input) = 0;
};

struct Command {
  std::string_view name;      // one word or two
  std::string_view summary;   // one line
  std::string_view examples;  // one per line
  std::unique_ptr<CommandCall> (*call)(const Launch& launch);
  std::string_view words = {};  // the flag that takes positional arguments
  // Flags that help shows first, separated by spaces; those that do not exist are left out.
  std::string_view usual = {};
};

// Command::call for a command with configuration `Config`, which has fields(FieldList&), run by
// kRun.
template <class Config, int (*kRun)(Config& wanted, const CommandInput& input)>
std::unique_ptr<CommandCall> call_of([[maybe_unused]] const Launch& launch) {
  struct Call final : CommandCall {
    void fields(FieldList& list) override { wanted.fields(list); }
    int run(const CommandInput& input) override { return kRun(wanted, input); }
    Config wanted;
  };
  auto call = std::make_unique<Call>();
  // The launched processes divide the ranks of a run.
  if constexpr (requires { call->wanted.run.parallel; }) {
    call->wanted.run.parallel.processes = launch.processes;
  }
  return call;
}

}  // namespace bev
