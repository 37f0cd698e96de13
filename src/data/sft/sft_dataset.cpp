#include "data/sft/sft_dataset.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/philox.h"
#include "base/plural.h"
#include "data/random/shuffle.h"
#include "data/sft/encode_records.h"
#include "data/sft/sft_pack.h"
#include "data/sft/sft_rows.h"

namespace bev {

namespace {

TextOptions sft_options() { return record_options(sft_row_keys()); }

SftTokens encode_record(const Record& record, const std::string& source,
                        const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  BEV_CHECK(record.problem.empty(), ErrorKind::kInput, source, ": ", record.problem);
  SftRow row = read_sft_row(record.text, source);
  if (row.messages.sequence()->items.empty()) return {};
  try {
    return encode_sft_row(row, chat_template, tokenizer);
  } catch (const Error& error) {
    throw Error(source + ": ", error);
  }
}

std::vector<SftTokens> encode_files(const std::vector<std::string>& names,
                                    const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  std::vector<SftTokens> out;
  auto grow = [&](std::size_t count) { out.resize(out.size() + count); };
  encode_records(names, sft_options(), "conversations", grow,
                 [&](std::size_t i, const Record& record, const std::string& place) {
                   out[i] = encode_record(record, place, chat_template, tokenizer);
                 });
  return out;
}

}  // namespace

std::vector<SftConversation> read_conversations(const std::vector<std::string>& names,
                                                std::int64_t first, std::int64_t count,
                                                const ChatTemplate& chat_template,
                                                const Tokenizer& tokenizer) {
  const TextOptions text = sft_options();
  const std::vector<InputFile> files = list_inputs(names, text).files;
  const std::vector<std::vector<FileRange>> parts = cut_inputs(files, 1);
  TextSource source(files, parts.front(), text);
  std::vector<SftConversation> out;
  Record record;
  for (std::int64_t at = 0; std::ssize(out) < count && source.next(record); ++at) {
    if (at < first) continue;
    const InputFile& file = files[record.file];
    std::string place = place_of(record, file);
    out.push_back({place, encode_record(record, place, chat_template, tokenizer)});
  }
  return out;
}

SftDataset::SftDataset(const SftConfig& config, const Tokenizer& tokenizer,
                       const ChatTemplate& chat_template)
    : config_(config), pad_id_(tokenizer.eod().value_or(0)) {
  for (SftTokens& tokens : encode_files(config.files, chat_template, tokenizer)) {
    ++report_.conversations;
    if (tokens.ids.empty()) {
      ++report_.empty;
      continue;
    }
    std::int32_t most = std::ranges::max(tokens.ids);
    BEV_CHECK(config.vocab_size == 0 || most < config.vocab_size, ErrorKind::kInput,
              config.files[0], ": the tokenizer gives token ", most,
              " and the model's vocabulary has ", config.vocab_size,
              "; give the tokenizer of the model, or a larger --vocab-size");
    if (keep(tokens)) conversations_.push_back(std::move(tokens));
  }
  BEV_CHECK(!conversations_.empty(), ErrorKind::kInput, config.files[0], ": of ",
            count_of(report_.conversations, "conversation"), " none has an answer to learn from (",
            report_.dropped_long, " are longer than ", config.seq_length, " tokens, ",
            report_.dropped_mute, " have no answer within them, ", report_.empty, " are empty)");
  std::vector<std::int64_t> lengths;
  for (const SftTokens& tokens : conversations_) {
    lengths.push_back(static_cast<std::int64_t>(tokens.ids.size()));
  }
  bins_ = pack_lengths(lengths, config.seq_length);
  report_.samples = num_samples();
}

bool SftDataset::keep(SftTokens& tokens) {
  auto most = static_cast<std::size_t>(config_.seq_length);
  bool too_long = tokens.ids.size() > most;
  if (too_long && config_.too_long == TooLong::kDrop) {
    ++report_.dropped_long;
    return false;
  }
  if (too_long) {
    tokens.ids.resize(most);
    tokens.learned.resize(most);
  }
  // The first token has no predecessor that could predict it.
  if (!tokens.learned.empty()) tokens.learned[0] = 0;
  std::int64_t learned = std::ranges::count(tokens.learned, 1);
  if (learned == 0) {
    ++report_.dropped_mute;
    return false;
  }
  report_.cut += too_long ? 1 : 0;
  report_.tokens += static_cast<std::int64_t>(tokens.ids.size());
  report_.learned += learned;
  return true;
}

TokenSample SftDataset::sample(std::int64_t index) const {
  std::int64_t count = num_samples(), epoch = index / count, at = index % count;
  if (config_.shuffle) {
    at = permute_index(at, count, mix_bits(config_.seed, static_cast<std::uint64_t>(epoch)));
  }
  TokenSample sample;
  for (std::size_t place : bins_[static_cast<std::size_t>(at)]) {
    const SftTokens& from = conversations_[place];
    for (std::size_t t = 0; t < from.ids.size(); ++t) {
      bool learned = t + 1 < from.ids.size() && from.learned[t + 1] == 1;
      sample.tokens.push_back(from.ids[t]);
      sample.targets.push_back(learned ? from.ids[t + 1] : -1);
      sample.weights.push_back(learned ? 1.0f : 0.0f);
    }
    sample.documents.push_back(static_cast<std::int32_t>(from.ids.size()));
  }
  auto length = static_cast<std::size_t>(config_.seq_length);
  if (std::size_t padding = length - sample.tokens.size(); padding > 0) {
    sample.tokens.resize(length, pad_id_);
    sample.targets.resize(length, -1);
    sample.weights.resize(length, 0.0f);
    sample.documents.push_back(static_cast<std::int32_t>(padding));
  }
  return sample;
}

std::string to_text(const SftReport& report, std::int64_t seq_length) {
  double places = static_cast<double>(report.samples) * static_cast<double>(seq_length);
  std::string out = fmt::format(
      "{} in {} of {} tokens: {:.1f} % filled, {:.1f} % of the tokens learned",
      count_of(report.conversations, "conversation"), count_of(report.samples, "sample"),
      seq_length, 100 * static_cast<double>(report.tokens) / places,
      100 * static_cast<double>(report.learned) / static_cast<double>(report.tokens));
  if (report.cut > 0) out += fmt::format("; {} cut to {} tokens", report.cut, seq_length);
  if (report.dropped_long > 0) {
    out +=
        fmt::format("; {} dropped, being longer than {} tokens", report.dropped_long, seq_length);
  }
  if (report.empty > 0) out += fmt::format("; {} left out, being empty", report.empty);
  if (report.dropped_mute > 0) {
    out += fmt::format("; {} dropped, having no answer", report.dropped_mute);
  }
  return out;
}

}  // namespace bev
