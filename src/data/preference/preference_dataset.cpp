#include "data/preference/preference_dataset.h"

#include <algorithm>

#include "base/error.h"
#include "base/philox.h"
#include "base/plural.h"
#include "data/random/shuffle.h"
#include "data/sft/encode_records.h"

namespace bev {

namespace {

struct EncodedRow {
  PreferenceTokens tokens;
  std::string place;
};

std::vector<EncodedRow> encode_files(const PreferenceDataConfig& config, const Tokenizer& tokenizer,
                                     const ChatTemplate* chat_template) {
  std::vector<EncodedRow> out;
  auto grow = [&](std::size_t count) { out.resize(out.size() + count); };
  auto encode = [&](std::size_t i, const Record& record, const std::string& place) {
    BEV_CHECK(record.problem.empty(), ErrorKind::kInput, place, ": ", record.problem);
    PreferenceRow row = read_preference_row(record.text, place, config.kind);
    try {
      out[i] = {encode_preference_row(row, chat_template, tokenizer), place};
    } catch (const Error& error) {
      throw Error(place + ": ", error);
    }
  };
  encode_records(config.files, record_options(preference_row_keys()), "preferences", grow, encode);
  return out;
}

void check_ids(const PreferenceTokens& row, std::int64_t vocab_size, const std::string& place) {
  std::int32_t most = std::ranges::max(row.prompt);
  for (const TokenRow& answer : row.answers) most = std::max(most, std::ranges::max(answer));
  BEV_CHECK(vocab_size == 0 || most < vocab_size, ErrorKind::kInput, place,
            ": the tokenizer gives token ", most, " and the model's vocabulary has ", vocab_size,
            "; give the tokenizer of the model, or a larger --vocab-size");
}

// Rows must have the same optional columns.
void check_columns(const PreferenceTokens& row, const PreferenceTokens& first,
                   const std::string& place, const std::string& first_place) {
  auto check = [&](const char* name, bool here, bool there) {
    BEV_CHECK(here == there, ErrorKind::kInput, here ? first_place : place, ": \"", name,
              "\" is missing, which ", here ? place : first_place, " has");
  };
  check("ref_chosen_logps", row.ref_chosen_logps.has_value(), first.ref_chosen_logps.has_value());
  check("margin", row.margin.has_value(), first.margin.has_value());
}

}  // namespace

PreferenceDataset::PreferenceDataset(const PreferenceDataConfig& config, const Tokenizer& tokenizer,
                                     const ChatTemplate* chat_template)
    : config_(config) {
  std::vector<EncodedRow> encoded = encode_files(config, tokenizer, chat_template);
  const PreferenceTokens first = encoded.empty() ? PreferenceTokens() : encoded[0].tokens;
  for (EncodedRow& row : encoded) {
    ++report_.rows;
    check_ids(row.tokens, config.vocab_size, row.place);
    check_columns(row.tokens, first, row.place, encoded[0].place);
    if (keep(row.tokens, row.place)) rows_.push_back(std::move(row.tokens));
  }
  BEV_CHECK(!rows_.empty(), ErrorKind::kInput, config.files[0], ": of ",
            count_of(report_.rows, "row"), " none has a prompt of less than ", config.max_length,
            " tokens; give a larger --seq-length or --max-prompt-length");
}

bool PreferenceDataset::keep(PreferenceTokens& row, const std::string& place) {
  auto limit = [](std::int64_t given) {
    return given > 0 ? static_cast<std::size_t>(given) : std::size_t{1} << 60;
  };
  bool cut = false;
  if (std::size_t most = limit(config_.max_prompt_length); row.prompt.size() > most) {
    row.prompt.erase(row.prompt.begin(), row.prompt.end() - static_cast<std::ptrdiff_t>(most));
    cut = true;
  }
  std::size_t whole = limit(config_.max_length);
  if (row.prompt.size() >= whole) {
    ++report_.dropped;
    return false;
  }
  std::size_t room = std::min(whole - row.prompt.size(), limit(config_.max_completion_length));
  for (TokenRow& answer : row.answers) {
    cut |= answer.size() > room;
    if (answer.size() > room) answer.resize(room);
    report_.tokens += std::ssize(row.prompt) + std::ssize(answer);
  }
  report_.cut += cut ? 1 : 0;
  report_.diverging += row.diverges ? 1 : 0;
  if (row.alike && report_.alike++ == 0) report_.first_alike = place;
  return true;
}

TokenSample PreferenceDataset::sample(std::int64_t index) const {
  std::int64_t count = num_samples(), epoch = index / count, at = index % count;
  if (config_.shuffle) {
    at = permute_index(at, count, mix_bits(config_.seed, static_cast<std::uint64_t>(epoch)));
  }
  const PreferenceTokens& row = rows_[static_cast<std::size_t>(at)];
  if (config_.kind == PreferenceKind::kLabelled) {
    return row_sample({row.prompt, row.answers[0], row.desirable, {}});
  }
  return pair_sample({row.prompt, row.answers[0], row.answers[1], row.ref_chosen_logps,
                      row.ref_rejected_logps, row.margin},
                     config_.scores_prompt);
}

void PreferenceDataset::join(TokenSample& sample, const TokenSample& before) const {
  if (joins()) set_mismatched(sample, before);
}

std::string to_text(const PreferenceReport& report, const PreferenceDataConfig& config) {
  bool pairs = config.kind == PreferenceKind::kPair;
  std::string out =
      concat(count_of(report.rows, pairs ? "pair" : "row"), ", ", report.tokens, " tokens");
  auto add = [&](std::int64_t count, const std::string& what) {
    if (count > 0) out += concat("; ", count, " ", what);
  };
  add(report.cut, concat("cut to ", config.max_length, " tokens or to their limits"));
  add(report.dropped, concat("dropped, whose prompt has ", config.max_length, " tokens or more"));
  add(report.alike, concat("with equal answers, from which nothing can be learned (the first is ",
                           report.first_alike, ")"));
  add(report.diverging,
      "whose prompt is cut where its tokens change when an answer follows (the chat template "
      "writes it otherwise, or tokens join)");
  return out;
}

}  // namespace bev
