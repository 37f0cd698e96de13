#include "train/preference_data.h"

#include <optional>

#include "base/error.h"
#include "base/log.h"

namespace bev {

namespace {

// Rows of texts need no template.
std::optional<ChatTemplate> find_template(const DataConfig& config) {
  if (!config.chat_template.empty()) {
    return ChatTemplate::load(config.tokenizer, config.chat_template, false);
  }
  try {
    return ChatTemplate::load(config.tokenizer, "", false);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::shared_ptr<const PreferenceDataset> open_preference_data(const DataConfig& config,
                                                              DataSplit split,
                                                              std::int64_t vocab_size,
                                                              std::uint64_t seed) {
  const PreferenceConfig& flags = config.preferences;
  bool training = split == DataSplit::kTrain;
  ObjectiveRule rule = flags.rule();
  bool pairs = rule.kind != ObjectiveKind::kKto;
  PreferenceDataConfig data;
  data.files = training ? flags.data : flags.valid_data;
  data.kind = pairs ? PreferenceKind::kPair : PreferenceKind::kLabelled;
  data.scores_prompt = rule.kind == ObjectiveKind::kPair && rule.pair.nll_factor() != 0 &&
                       rule.pair.nll_tokens == NllTokens::kAll;
  data.max_length = config.seq_length;
  data.max_prompt_length = flags.max_prompt_length;
  data.max_completion_length = flags.max_completion_length;
  data.vocab_size = vocab_size;
  data.seed = seed;
  data.shuffle = training;
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(config.tokenizer, config.tiktoken);
  std::optional<ChatTemplate> chat_template = find_template(config);
  auto out = std::make_shared<PreferenceDataset>(data, *tokenizer,
                                                 chat_template ? &*chat_template : nullptr);
  log_info(concat(name_of(split), " data: ", to_text(out->report(), data)));
  return out;
}

}  // namespace bev
