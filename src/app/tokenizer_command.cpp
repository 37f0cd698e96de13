// tokenizer train: byte-level BPE from text files.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "app/commands.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "tokenizer/trained_tokenizer.h"
#include "tokenizer/word_counter.h"

namespace bev {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr double kGibibyte = 1024.0 * 1024.0 * 1024.0;

// Redraws one line on a terminal; elsewhere writes one now and then.
class ProgressWatcher : public TrainingWatcher {
 public:
  explicit ProgressWatcher(std::int64_t text_bytes) : text_bytes_(text_bytes) {}
  ~ProgressWatcher() override { clear(); }
  ProgressWatcher(const ProgressWatcher&) = delete;
  ProgressWatcher& operator=(const ProgressWatcher&) = delete;

  void counted(std::int64_t bytes) override {
    show("words", bytes, text_bytes_,
         fmt::format("{} of {}", format_bytes(static_cast<double>(bytes)),
                     format_bytes(static_cast<double>(text_bytes_))));
  }
  void dropped(std::int64_t words, std::int64_t most) override {
    log_warning(fmt::format(
        "--max-memory is reached: {} words that came at most {} time{} so far are forgotten", words,
        most, most == 1 ? "" : "s"));
  }
  void merged(std::int64_t tokens, std::int64_t wanted) override {
    constexpr std::int64_t kTokensPerLook = 64;  // at the clock
    if (tokens % kTokensPerLook != 0) return;
    show("merges", tokens, wanted, fmt::format("{} of {} tokens", tokens, wanted));
  }
  void clear() {
    if (drawn_) draw("");
    drawn_ = false;
  }

 private:
  void show(const char* phase, std::int64_t done, std::int64_t all, const std::string& text) {
    const double now = monotonic_seconds();
    if (phase != phase_) {
      phase_ = phase;
      began_ = shown_ = now;
      began_at_ = done;
    }
    const double wait = terminal_ ? 0.1 : 10.0;
    if (now - shown_ < wait || done <= began_at_) return;
    shown_ = now;
    double left = (now - began_) * static_cast<double>(std::max<std::int64_t>(all - done, 0)) /
                  static_cast<double>(done - began_at_);
    std::string line = fmt::format("{}: {}, {} left", phase, text, format_duration(left));
    if (!terminal_) return log_info(line);
    draw(line);
    drawn_ = true;
  }
  static void draw(const std::string& line) {
    std::string text = "\r" + line + "\x1b[K";
    // A progress line that cannot be written is not worth an error.
    [[maybe_unused]] ssize_t put = ::write(STDERR_FILENO, text.data(), text.size());
  }

  std::int64_t text_bytes_;
  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool drawn_ = false;
  std::string_view phase_;
  double began_ = 0.0, shown_ = 0.0;
  std::int64_t began_at_ = 0;
};

// The files that the paths mean; a folder: all below it, by name.
std::vector<std::string> find_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    BEV_CHECK(path_exists(path), ErrorKind::kInput, path, ": no such file or folder");
    if (!is_directory(path)) {
      files.push_back(path);
      continue;
    }
    const std::size_t before = files.size();
    std::error_code error;
    fs::recursive_directory_iterator entry(path, error), end;
    for (; !error && entry != end; entry.increment(error)) {
      std::error_code dangling;  // a link to nothing is no regular file
      if (entry->is_regular_file(dangling)) files.push_back(entry->path().string());
    }
    BEV_CHECK(!error, ErrorKind::kInput, "cannot list ", path, ": ", error.message());
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(before), files.end());
  }
  return files;
}

std::int64_t total_bytes(const std::vector<std::string>& files) {
  std::int64_t bytes = 0;
  for (const std::string& file : files) {
    std::error_code unknown;  // the size of a pipe; reading says what is wrong with the rest
    std::uintmax_t size = fs::file_size(file, unknown);
    if (!unknown) bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

void add_json_line(std::string_view line, const std::string& where,
                   const std::vector<std::string>& keys, WordCounter& counter) {
  Json json = Json::parse(line, nullptr, false);
  BEV_CHECK(json.is_object(), ErrorKind::kInput, where, ": not a JSON object");
  for (const std::string& key : keys) {
    auto found = json.find(key);
    BEV_CHECK(found != json.end() && found->is_string(), ErrorKind::kInput, where,
              ": has no text \"", key, "\"; name the member with --json-keys");
    counter.add_text(found->get_ref<const std::string&>());
  }
}

void add_json_lines(std::string_view text, const std::string& file,
                    const std::vector<std::string>& keys, WordCounter& counter) {
  for (std::int64_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (!trim(line).empty()) add_json_line(line, concat(file, ":", number), keys, counter);
  }
}

void add_file(const std::string& file, const TokenizerTrainOptions& wanted, WordCounter& counter) {
  MappedFile mapped(file);
  std::string_view text(reinterpret_cast<const char*>(mapped.bytes().data()),
                        mapped.bytes().size());
  if (file.ends_with(".jsonl")) {
    add_json_lines(text, file, wanted.json_keys, counter);
  } else {
    counter.add_text(text);
  }
}

// Fails before the work rather than after it.
void check_writable(const std::string& folder) {
  make_directories(folder);
  BEV_CHECK(::access(folder.c_str(), W_OK | X_OK) == 0, ErrorKind::kIo, folder,
            ": this folder cannot be written to");
}

}  // namespace

int run_tokenizer_train(CommandConfig& config, const FieldList&, Options& options) {
  const TokenizerTrainOptions& wanted = config.tokenizer_train;
  options.add_problems(wanted.problems());
  options.throw_problems();
  if (config.launch.process != 0) return kExitOk;  // one does it for all
  const double start = monotonic_seconds();
  const std::int64_t workers = wanted.workers > 0
                                   ? wanted.workers
                                   : std::max<std::int64_t>(1, std::thread::hardware_concurrency());
  const std::string pre_tokenizer = byte_level_pre_tokenizer(wanted.pattern);
  const std::vector<std::string> files = find_files(wanted.input);
  check_writable(wanted.output);
  ProgressWatcher watcher(total_bytes(files));
  WordCounterOptions counting;
  counting.pre_tokenizer = pre_tokenizer;
  counting.workers = static_cast<int>(workers);
  counting.max_bytes = static_cast<std::size_t>(wanted.max_memory * kGibibyte);
  WordCounter counter(counting, watcher);
  for (const std::string& file : files) add_file(file, wanted, counter);
  std::vector<WordTable> words = counter.finish();
  std::size_t different = 0;
  for (const WordTable& table : words) different += table.size();
  BEV_CHECK(different > 0, ErrorKind::kInput, "no text in ", join(wanted.input, ", "));
  TrainedBpe trained = train_bpe(
      std::move(words), {wanted.vocab_size, wanted.min_frequency, wanted.special_tokens}, watcher);
  write_trained_tokenizer(wanted.output, trained, pre_tokenizer, wanted.special_tokens);
  watcher.clear();
  if (static_cast<std::int64_t>(trained.tokens.size()) < wanted.vocab_size) {
    log_warning(
        fmt::format("the text has no more pairs: the vocabulary has {} tokens instead of {}",
                    trained.tokens.size(), wanted.vocab_size));
  }
  log_info(fmt::format("{}: {} tokens from {} different words in {}", wanted.output,
                       trained.tokens.size(), different,
                       format_duration(monotonic_seconds() - start)));
  return kExitOk;
}

}  // namespace bev
