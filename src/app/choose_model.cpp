#include "app/choose_model.h"

#include <optional>

#include "app/idle_flags.h"
#include "app/options.h"
#include "app/recorded_run.h"
#include "base/error.h"
#include "bridge/hf_model.h"
#include "models/families/family.h"
#include "models/families/follow_sizes.h"

namespace bev {

namespace {

constexpr const char* kFamily = "model-family";

// The model that flags change; nullopt if they describe all of it.
std::optional<ModelConfig> base_model(const RunConfig& run, const Options& options) {
  const std::string &preset_name = run.train.preset, &folder = run.train.hf_model;
  std::optional<ModelConfig> family;
  if (options.given(kFamily)) family = family_defaults(run.model.family);
  if (!preset_name.empty()) return preset(preset_name);
  return folder.empty() ? family : read_hf_config(folder);
}

// Reads the model of --preset, --hf-model or --family, before flags override it.
void read_model(RunConfig& run, const FieldList& fields, Options& options) {
  const std::string &preset_name = run.train.preset, &folder = run.train.hf_model;
  if (!preset_name.empty() && !folder.empty()) {
    // The other rules are checked on the preset.
    options.add_problems(std::vector{concat("--preset: ", preset_name, " and --hf-model ", folder,
                                            " both give the model; keep one")});
  }
  std::optional<ModelConfig> base;
  try {
    base = base_model(run, options);
  } catch (const Error& error) {
    if (options.problems().empty()) throw;
    options.add_problems(std::vector<std::string>{error.what()});
    options.throw_problems();
  }
  if (!base) return;
  run.model = *base;
  bool fixed = preset_name.empty() && !folder.empty();
  if (fixed) {
    bool upcycled = options.given("moe-use-upcycling") || run.checkpoint.loads_experts;
    options.add_problems(model_conflicts(options, fields, run.model, upcycled));
  }
  options.apply(fields);
  if (fixed) return;
  follow_sizes(
      *base, [&](std::string_view flag) { return options.given(flag); }, run.model);
}

}  // namespace

void choose_model(RunConfig& run, const FieldList& fields, Options& options) {
  bool named = !run.train.preset.empty() || !run.train.hf_model.empty();
  if (!named && goes_on_alone(run.checkpoint, options)) {
    take_recorded_model(run.checkpoint, fields, options);
  } else {
    read_model(run, fields, options);
  }
  options.add_problems(idle_flags(options, fields, run));
}

std::vector<std::string> fit_new_model(RunConfig& run, const Options& options) {
  if (!run.train.hf_model.empty()) return {};
  std::vector<std::string> notes;
  auto fit = [&](const char* what, std::int64_t& size, std::int64_t wanted, std::string_view why,
                 const char* flag) {
    if (!run.train.preset.empty() && size > 0) {
      notes.push_back(concat("--preset ", run.train.preset, " has ", size, " ", what, ", ", why,
                             " ", wanted, ": the new model has ", wanted, " (", flag,
                             " gives another number)"));
    }
    size = wanted;
  };
  std::int64_t &rows = run.model.vocab_size, &positions = run.model.max_position_embeddings;
  std::int64_t tokens = run.data.tokenizer_vocab_size, length = run.data.seq_length;
  std::int64_t loaded = run.checkpoint.loaded_vocab_size;
  if (loaded > 0 && !options.given("vocab-size")) {
    rows = loaded;
  } else if (tokens > 0 && tokens != rows && !run.data.mock_data && !options.given("vocab-size")) {
    fit("vocabulary rows", rows, tokens, concat("the tokenizer ", run.data.tokenizer, " has"),
        "--vocab-size");
    if (run.model.padding_row >= rows) run.model.padding_row = -1;
  } else if (tokens == 0 && run.train.preset.empty() && run.data.has_token_files() &&
             !options.given("vocab-size")) {
    rows = 0;  // token files have a vocabulary of their own, which only the user knows
  }
  if (positions > 0 && length > positions && !options.given("max-position-embeddings")) {
    fit("positions", positions, length, "--seq-length is", "--max-position-embeddings");
  }
  return notes;
}

}  // namespace bev
