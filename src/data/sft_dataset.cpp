#include "data/sft_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "data/sft_pack.h"
#include "data/shuffle.h"

namespace bev {

namespace {

struct Line {
  std::string_view text;
  const std::string* path;
  std::int64_t number;
};

// The lines that are not blank.
void add_lines(const MappedFile& file, std::vector<Line>& lines) {
  auto bytes = file.bytes();
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (std::int64_t number = 1; !text.empty(); ++number) {
    std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = trim(text.substr(0, end));
    if (!line.empty()) lines.push_back({line, &file.path(), number});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// Says how far a long encoding is, every few seconds.
class EncodingProgress {
 public:
  explicit EncodingProgress(std::size_t total) : total_(total) {}

  void add(std::size_t done) {
    constexpr double kSeconds = 10;
    done_ += done;
    double now = monotonic_seconds() - start_;
    if (now - said_at_ < kSeconds || done_ == total_) return;
    said_at_ = now;
    double left = now * static_cast<double>(total_ - done_) / static_cast<double>(done_);
    log_info(fmt::format("encoding conversations: {} of {}, {} left", done_, total_,
                         format_duration(left)));
  }

 private:
  std::size_t total_, done_ = 0;
  double start_ = monotonic_seconds();
  double said_at_ = 0;
};

SftTokens encode_line(const Line& line, const ChatTemplate& chat_template,
                      const Tokenizer& tokenizer) {
  std::string source = concat(*line.path, ", line ", line.number);
  SftRow row = read_sft_row(line.text, source);
  try {
    return encode_sft_row(row, chat_template, tokenizer);
  } catch (const Error& error) {
    throw Error(source + ": ", error);
  }
}

// The first line that fails is the one that is told, whatever the threads do.
std::vector<SftTokens> encode_lines(const std::vector<Line>& lines,
                                    const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  constexpr std::size_t kBlock = 4096;
  std::vector<SftTokens> out(lines.size());
  std::vector<std::exception_ptr> failures(lines.size());
  ThreadPool pool(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  EncodingProgress progress(lines.size());
  for (std::size_t begin = 0; begin < lines.size(); begin += kBlock) {
    std::size_t count = std::min(kBlock, lines.size() - begin);
    pool.run(static_cast<std::int64_t>(count), [&](std::int64_t piece) {
      std::size_t at = begin + static_cast<std::size_t>(piece);
      try {
        out[at] = encode_line(lines[at], chat_template, tokenizer);
      } catch (...) {
        failures[at] = std::current_exception();
      }
    });
    for (std::size_t at = begin; at < begin + count; ++at) {
      if (failures[at]) std::rethrow_exception(failures[at]);
    }
    progress.add(count);
  }
  return out;
}

}  // namespace

SftDataset::SftDataset(const SftConfig& config, const Tokenizer& tokenizer,
                       const ChatTemplate& chat_template)
    : config_(config), pad_id_(tokenizer.eod().value_or(0)) {
  std::vector<MappedFile> files;
  std::vector<Line> lines;
  files.reserve(config.files.size());
  for (const std::string& path : config.files) add_lines(files.emplace_back(path), lines);
  for (SftTokens& tokens : encode_lines(lines, chat_template, tokenizer)) {
    ++report_.conversations;
    std::int32_t most = tokens.ids.empty() ? 0 : std::ranges::max(tokens.ids);
    BEV_CHECK(config.vocab_size == 0 || most < config.vocab_size, ErrorKind::kInput,
              config.files[0], ": the tokenizer gives token ", most,
              " and the model's vocabulary has ", config.vocab_size,
              "; give the tokenizer of the model, or a larger --vocab-size");
    if (keep(tokens)) conversations_.push_back(std::move(tokens));
  }
  BEV_CHECK(!conversations_.empty(), ErrorKind::kInput, config.files[0], ": of ",
            report_.conversations, " conversations none has an answer to learn from (",
            report_.dropped_long, " are longer than ", config.seq_length, " tokens, ",
            report_.dropped_mute, " have no answer within them)");
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
  // The first token has none before it that could predict it.
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
      "{} conversations in {} samples of {} tokens: {:.1f} % filled, {:.1f} % of the tokens "
      "learned",
      report.conversations, report.samples, seq_length,
      100 * static_cast<double>(report.tokens) / places,
      100 * static_cast<double>(report.learned) / static_cast<double>(report.tokens));
  if (report.cut > 0) out += fmt::format("; {} cut to {} tokens", report.cut, seq_length);
  if (report.dropped_long > 0) {
    out +=
        fmt::format("; {} dropped, being longer than {} tokens", report.dropped_long, seq_length);
  }
  if (report.dropped_mute > 0) {
    out += fmt::format("; {} dropped, having no answer", report.dropped_mute);
  }
  return out;
}

}  // namespace bev
