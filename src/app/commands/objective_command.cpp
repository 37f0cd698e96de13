// objective: a post-training objective of log-probabilities in a file, with its gradients.
#include "app/command.h"
#include "app/commands/commands.h"
#include "app/options.h"
#include "base/fields.h"
#include "base/output.h"
#include "posttrain/objective_input.h"

namespace bev {

namespace {

struct ObjectiveOptions {
  std::string objective;
  std::string input;
  bool json = true;  // always

  void fields(FieldList& list) {
    list.section("objective");
    list.add("objective", objective, "name of the objective; also without the flag")
        .one_of(objective_names());
    list.add("input", input, "JSON file with the log-probabilities and settings by name");
    list.add("json", json, "results are one JSON line in any case");
  }
};

int run_objective(ObjectiveOptions& wanted, const CommandInput& input) {
  std::vector<std::string> problems;
  need(wanted.objective, "--objective", "the name of an objective", problems);
  need(wanted.input, "--input", "a JSON file", problems);
  input.options.add_problems(problems);
  input.options.throw_problems();
  ObjectiveRule rule = find_objective(wanted.objective);
  write_stdout(objective_json(rule, JsonPlace::read(wanted.input)) + "\n");
  return kExitOk;
}

}  // namespace

const Command kObjectiveCommand = {
    .name = "objective",
    .summary = "loss and gradients of a post-training objective on numbers of a file",
    .examples = "bevatron objective dpo --input pairs.json",
    .call = call_of<ObjectiveOptions, run_objective>,
    .words = "objective"};

}  // namespace bev
