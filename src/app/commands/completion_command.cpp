// completion: scripts that complete commands and flags in a shell.
#include "app/commands/commands.h"
#include "app/options.h"
#include "app/shell_files.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/output.h"
#include "base/text.h"

namespace bev {

namespace {

struct CompletionOptions {
  std::vector<std::string> shell;

  void fields(FieldList& list) {
    list.section("completion");
    list.add("shell", shell, "the shell").one_of({"bash", "zsh", "fish"});
  }
};

int run_completion(CompletionOptions& wanted, const CommandInput& input) {
  if (wanted.shell.size() != 1) {
    input.options.add_problems(
        std::vector<std::string>{"completion: give one shell: bash, zsh or fish"});
  }
  input.options.throw_problems();
  const std::string& shell = wanted.shell[0];
  write_stdout(shell == "bash"  ? bash_completion()
               : shell == "zsh" ? zsh_completion()
                                : fish_completion());
  return kExitOk;
}

}  // namespace

const Command kCompletionCommand = {
    .name = "completion",
    .summary = "a script that completes commands and flags in bash, zsh or fish",
    .examples =
        "source <(bevatron completion bash)\n"
        "bevatron completion zsh > ~/.zfunc/_bevatron\n"
        "bevatron completion fish > ~/.config/fish/completions/bevatron.fish",
    .call = call_of<CompletionOptions, run_completion>,
    .words = "shell"};

}  // namespace bev
