// tokenizer train: byte-level BPE from text files.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "app/commands.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "data/record_texts.h"
#include "data/text_source.h"
#include "tokenizer/trained_tokenizer.h"
#include "tokenizer/word_counter.h"

namespace bev {

namespace {

constexpr double kGibibyte = 1024.0 * 1024.0 * 1024.0;

// Redraws one line on a terminal; elsewhere writes one now and then.
class ProgressWatcher : public TrainingWatcher {
 public:
  // 0: nobody knows how much there is to read.
  explicit ProgressWatcher(std::int64_t input_bytes) : input_bytes_(input_bytes) {}
  ~ProgressWatcher() override { clear(); }
  ProgressWatcher(const ProgressWatcher&) = delete;
  ProgressWatcher& operator=(const ProgressWatcher&) = delete;

  // So many bytes of the input so far: of archives, less than the text that is counted.
  void read(std::int64_t bytes) { read_bytes_ = bytes; }
  void counted(std::int64_t text_bytes) override {
    show("words", read_bytes_, input_bytes_,
         fmt::format("{} of text", format_bytes(static_cast<double>(text_bytes))));
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
    std::string line = fmt::format("{}: {}", phase, text);
    if (all > 0) {
      double left = (now - began_) * static_cast<double>(std::max<std::int64_t>(all - done, 0)) /
                    static_cast<double>(done - began_at_);
      line += fmt::format(", {} left", format_duration(left));
    }
    if (!terminal_) return log_info(line);
    draw(line);
    drawn_ = true;
  }
  static void draw(const std::string& line) {
    std::string text = "\r" + line + "\x1b[K";
    // A progress line that cannot be written is not worth an error.
    [[maybe_unused]] ssize_t put = ::write(STDERR_FILENO, text.data(), text.size());
  }

  std::int64_t input_bytes_, read_bytes_ = 0;
  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool drawn_ = false;
  std::string_view phase_;
  double began_ = 0.0, shown_ = 0.0;
  std::int64_t began_at_ = 0;
};

// The inputs' documents, one after the other.
class DocumentReader {
 public:
  explicit DocumentReader(const TokenizerTrainOptions& wanted) : wanted_(wanted) {
    TextOptions text = wanted.text;
    text.other_names_are_text = true;
    text.piece_bytes = kPieceBytes;
    files_ = list_inputs(wanted.input, text);
    parts_ = cut_inputs(files_, 1);
    source_ = std::make_unique<TextSource>(files_, parts_.front(), text);
  }

  // Bytes to read; 0 where one of the files is a pipe.
  std::int64_t input_bytes() const {
    if (!std::ranges::all_of(files_, &InputFile::regular)) return 0;
    std::int64_t bytes = 0;
    for (const InputFile& file : files_) bytes += file.bytes;
    return bytes;
  }

  void count_words(WordCounter& counter, ProgressWatcher& watcher) {
    Record record;
    while (source_->next(record)) {
      watcher.read(source_->position());
      for (const KeyTexts& texts : texts_of(record)) {
        for (const std::string& text : texts) counter.add_text(text, record.ends_document);
      }
    }
    if (skipped_ > 0) log_warning(fmt::format("{} documents skipped", skipped_));
  }

 private:
  static constexpr std::int64_t kPieceBytes = std::int64_t{1} << 22;
  static constexpr std::int64_t kSkippedShown = 20;

  // Of a record that is to be skipped an empty one, which may still end its document.
  std::vector<KeyTexts> texts_of(const Record& record) {
    const InputFile& file = files_[record.file];
    try {
      return record_texts(record, file.format, wanted_.json_keys, TextEncoding::kUtf8);
    } catch (const Error& error) {
      std::string what = concat(file.path, ":", record.line, ": ", error.what());
      BEV_CHECK(wanted_.text.on_error == BadRecords::kSkip, ErrorKind::kInput, what,
                "\n--on-error skip leaves such documents out");
      if (++skipped_ <= kSkippedShown) log_warning(concat(what, "; skipped"));
      return {{std::string()}};
    }
  }

  const TokenizerTrainOptions& wanted_;
  std::vector<InputFile> files_;
  std::vector<std::vector<FileRange>> parts_;
  std::unique_ptr<TextSource> source_;
  std::int64_t skipped_ = 0;
};

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
  const std::int64_t workers = wanted.workers > 0 ? wanted.workers : machine_threads();
  const std::string pre_tokenizer = byte_level_pre_tokenizer(wanted.pattern);
  DocumentReader documents(wanted);
  check_writable(wanted.output);
  ProgressWatcher watcher(documents.input_bytes());
  WordCounterOptions counting;
  counting.pre_tokenizer = pre_tokenizer;
  counting.workers = static_cast<int>(workers);
  counting.max_bytes = static_cast<std::size_t>(wanted.max_memory * kGibibyte);
  WordCounter counter(counting, watcher);
  documents.count_words(counter, watcher);
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
