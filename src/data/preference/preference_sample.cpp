#include "data/preference/preference_sample.h"

#include <algorithm>

#include "base/error.h"

namespace bev {

namespace {

// Appends prompt and completion as a document; `mask` (of the completion; empty: all ones) becomes
// weights.
void append(TokenSample& sample, const TokenRow& prompt, const TokenRow& completion,
            bool scores_prompt, const std::vector<double>& mask = {}) {
  BEV_CHECK(!prompt.empty() && !completion.empty(), ErrorKind::kInternal,
            "preference sample: a prompt of ", prompt.size(), " tokens and a completion of ",
            completion.size());
  const std::size_t begin = sample.tokens.size(), length = prompt.size() + completion.size();
  sample.tokens.insert(sample.tokens.end(), prompt.begin(), prompt.end());
  sample.tokens.insert(sample.tokens.end(), completion.begin(), completion.end());
  sample.targets.resize(begin + length, -1);
  sample.weights.resize(begin + length, 0);
  for (std::size_t t = 0; t + 1 < length; ++t) {
    bool completes = t + 1 >= prompt.size();
    if (!completes && !scores_prompt) continue;
    sample.targets[begin + t] = sample.tokens[begin + t + 1];
    if (!completes) continue;
    double weight = mask.empty() ? 1 : mask[t + 1 - prompt.size()];
    sample.weights[begin + t] = static_cast<float>(weight);
    if (weight == 0) sample.targets[begin + t] = -1;
  }
  sample.documents.push_back(static_cast<std::int32_t>(length));
}

SampleField number_field(FieldId id, double value) {
  return {id, FieldRows::kSamples, std::vector<double>{value}};
}

// Where the completion of a sample of one document begins.
std::ptrdiff_t completion_begin(const TokenSample& sample) {
  auto first = std::ranges::find_if(sample.weights, [](float weight) { return weight != 0; });
  return first - sample.weights.begin() + 1;
}

bool has_field(const TokenSample& sample, FieldId id) {
  return std::ranges::find(sample.fields, id, &SampleField::id) != sample.fields.end();
}

void add_mismatched(TokenSample& sample, const TokenRow& prompt, const TokenRow& completion) {
  TokenSample other;
  append(other, prompt, completion, false);
  sample.fields.push_back({kKlTokens, FieldRows::kOwn, std::move(other.tokens)});
  sample.fields.push_back({kKlTargets, FieldRows::kOwn, std::move(other.targets)});
}

}  // namespace

TokenSample pair_sample(const PreferencePair& pair, bool scores_prompt) {
  TokenSample sample;
  append(sample, pair.prompt, pair.chosen, scores_prompt);
  append(sample, pair.prompt, pair.rejected, false);
  auto add = [&](FieldId id, const std::optional<double>& value) {
    if (value) sample.fields.push_back(number_field(id, *value));
  };
  add(kRefChosenLogp, pair.ref_chosen_logp);
  add(kRefRejectedLogp, pair.ref_rejected_logp);
  add(kMargin, pair.margin);
  return sample;
}

TokenSample row_sample(const LabelledRow& row) {
  TokenSample sample;
  append(sample, row.prompt, row.completion, false);
  sample.fields.push_back(number_field(kLabel, row.desirable ? 1 : 0));
  if (!row.kl_completion.empty()) add_mismatched(sample, row.prompt, row.kl_completion);
  return sample;
}

void set_mismatched(TokenSample& row, const TokenSample& other) {
  add_mismatched(row, {row.tokens.begin(), row.tokens.begin() + completion_begin(row)},
                 {other.tokens.begin() + completion_begin(other), other.tokens.end()});
}

void set_mismatched(std::vector<TokenSample>& batch) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (has_field(batch[i], kKlTokens)) continue;
    set_mismatched(batch[i], batch[i > 0 ? i - 1 : batch.size() - 1]);
  }
}

TokenSample rollout_sample(const Rollout& rollout) {
  TokenSample sample;
  append(sample, rollout.prompt, rollout.completion, false, rollout.mask);
  sample.fields.push_back(number_field(kAdvantage, rollout.advantage));
  auto add = [&](FieldId id, const std::vector<double>& values) {
    if (values.empty()) return;
    std::vector<double> rows(sample.tokens.size());
    std::ranges::copy(values,
                      rows.begin() + static_cast<std::ptrdiff_t>(rollout.prompt.size()) - 1);
    sample.fields.push_back({id, FieldRows::kTokens, std::move(rows)});
  };
  add(kOldLogps, rollout.old_logps);
  add(kSamplingLogps, rollout.sampling_logps);
  add(kRefLogps, rollout.ref_logps);
  add(kTokenAdvantages, rollout.token_advantages);
  add(kOldValues, rollout.values);
  add(kReturns, rollout.returns);
  return sample;
}

}  // namespace bev
