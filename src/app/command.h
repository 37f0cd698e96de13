// A command of the program as one value: name, texts for the help, its flags and what it does. Each
// is defined in the command's own file and listed in commands.def.
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

// What a command is run with in addition to its configuration.
struct CommandInput {
  const Launch& launch;     // how this process was started
  const FieldList& fields;  // the configuration's
  Options& options;         // what was given; the configuration has it applied
};

// One call of a command: a configuration and the function that runs it.
class CommandCall {
 public:
  virtual ~CommandCall() = default;
  virtual void fields(FieldList& list) = 0;
  // Returns the exit code or throws. Presets, model folders and rules are the command's business.
  virtual int run(const CommandInput& input) = 0;
};

struct Command {
  std::string_view name;      // one word or two
  std::string_view summary;   // one line
  std::string_view examples;  // one per line
  std::unique_ptr<CommandCall> (*call)(const Launch& launch);
  std::string_view words = {};  // the flag that words without one belong to
};

// Command::call for a command whose configuration is a `Config`, which has fields(FieldList&), and
// that kRun runs.
template <class Config, int (*kRun)(Config& wanted, const CommandInput& input)>
std::unique_ptr<CommandCall> call_of([[maybe_unused]] const Launch& launch) {
  struct Call final : CommandCall {
    void fields(FieldList& list) override { wanted.fields(list); }
    int run(const CommandInput& input) override { return kRun(wanted, input); }
    Config wanted;
  };
  auto call = std::make_unique<Call>();
  // The ranks of a run are shared out over the processes that were started.
  if constexpr (requires { call->wanted.run.parallel; }) {
    call->wanted.run.parallel.processes = launch.processes;
  }
  return call;
}

}  // namespace bev
