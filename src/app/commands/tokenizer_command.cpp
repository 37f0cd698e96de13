// tokenizer train: trains byte-level BPE on text files.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "app/commands/commands.h"
#include "app/options.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/log.h"
#include "base/plural.h"
#include "base/thread_pool.h"
#include "data/preprocess/record_texts.h"
#include "data/preprocess/text_source.h"
#include "tokenizer/training/trained_tokenizer.h"
#include "tokenizer/training/word_counter.h"

namespace bev {

namespace {

struct TokenizerTrainOptions {
  std::vector<std::string> input;
  TextOptions text;
  std::string output;
  std::int64_t vocab_size = 32000;
  std::string pattern = "llama3";
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  // the first one ends documents
  std::int64_t min_frequency = 1;
  std::int64_t workers = 0;  // 0: all cores
  double max_memory = 4.0;   // GiB

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

void TokenizerTrainOptions::fields(FieldList& list) {
  list.section("tokenizer train");
  list.add("input", input,
           "files, patterns in quotes ('*.jsonl.gz') or folders: JSON (.jsonl, .ndjson, .json with "
           "lines or an array), Parquet, or text; also compressed (.gz, .zst). Hidden and binary "
           "files of folders are left out");
  text.fields(list);
  list.add("output", output, "folder for tokenizer.json and tokenizer_config.json");
  list.add("vocab-size", vocab_size, "tokens: special ones, 256 bytes, and merges for the rest")
      .min(256)
      .limit(1 << 24);
  list.add("pattern", pattern,
           "how text is cut into words before merging: llama3, gpt2, cl100k, o200k, qwen2 or a "
           "regular expression");
  list.add("special-tokens", special_tokens,
           "tokens that are never cut nor merged, ids 0 and up; the first ends documents");
  list.add("min-frequency", min_frequency, "a pair that comes less often is not merged").min(1);
  list.add("workers", workers, "threads that count words; 0: all cores").min(0).limit(1024);
  list.add("max-memory", max_memory,
           "GiB for words, about; beyond it the rarest are dropped, with a warning")
      .above(0)
      .limit(1 << 20);
}

std::vector<std::string> TokenizerTrainOptions::problems() const {
  std::vector<std::string> out;
  if (input.empty()) out.push_back("--input: is missing; give text files or folders");
  need(output, "--output", "the folder to write", out);
  if (text.json_keys.empty()) out.push_back("--json-keys: is empty; give the name of a member");
  if (special_tokens.empty()) {
    out.push_back("--special-tokens: is empty; give at least the token that ends documents");
  }
  for (std::size_t i = 0; i < special_tokens.size(); ++i) {
    const std::string& token = special_tokens[i];
    auto first = std::ranges::find(special_tokens, token);
    if (token.empty()) out.push_back("--special-tokens: one of them is empty");
    if (first - special_tokens.begin() != static_cast<std::ptrdiff_t>(i)) {
      out.push_back(concat("--special-tokens: ", token, " is given twice"));
    }
  }
  const auto least = static_cast<std::int64_t>(256 + special_tokens.size());
  if (vocab_size < least) {
    out.push_back(concat("--vocab-size: ", vocab_size, " is too small; 256 bytes and ",
                         special_tokens.size(), " special tokens need ", least));
  }
  return out;
}

constexpr double kGibibyte = 1024.0 * 1024.0 * 1024.0;

// Redraws one line on a terminal; otherwise prints a line now and then.
class ProgressWatcher : public TrainingWatcher {
 public:
  // `input_bytes` 0: the size of the input is unknown.
  explicit ProgressWatcher(std::int64_t input_bytes) : input_bytes_(input_bytes) {}
  ~ProgressWatcher() override { clear(); }
  ProgressWatcher(const ProgressWatcher&) = delete;
  ProgressWatcher& operator=(const ProgressWatcher&) = delete;

  // Bytes of the input read so far; for archives, less than the text counted.
  void read(std::int64_t bytes) { read_bytes_ = bytes; }
  void counted(std::int64_t text_bytes) override {
    show("words", read_bytes_, input_bytes_,
         fmt::format("{} of text", format_bytes(static_cast<double>(text_bytes))));
  }
  void dropped(std::int64_t words, std::int64_t most) override {
    log_warning(fmt::format("--max-memory is reached: {} that came at most {} so far are forgotten",
                            count_of(words, "word"), count_of(most, "time")));
  }
  void merged(std::int64_t tokens, std::int64_t wanted) override {
    constexpr std::int64_t kTokensPerLook = 64;  // tokens between two reads of the clock
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
    // A failure to write a progress line is ignored.
    [[maybe_unused]] ssize_t put = ::write(STDERR_FILENO, text.data(), text.size());
  }

  std::int64_t input_bytes_, read_bytes_ = 0;
  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool drawn_ = false;
  std::string_view phase_;
  double began_ = 0.0, shown_ = 0.0;
  std::int64_t began_at_ = 0;
};

// Reads the documents of the inputs, one after the other.
class DocumentReader {
 public:
  explicit DocumentReader(const TokenizerTrainOptions& wanted) : wanted_(wanted) {
    TextOptions text = wanted.text;
    text.piece_bytes = kPieceBytes;
    TextInputs inputs = list_inputs(wanted.input, text);
    log_info(to_text(inputs));
    files_ = std::move(inputs.files);
    parts_ = cut_inputs(files_, 1);
    source_ = std::make_unique<TextSource>(files_, parts_.front(), text);
  }

  // Size of the input in bytes; 0 if one of the files is a pipe.
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
    if (skipped_ > 0) log_warning(concat(count_of(skipped_, "document"), " skipped"));
  }

 private:
  static constexpr std::int64_t kPieceBytes = std::int64_t{1} << 22;
  static constexpr std::int64_t kSkippedShown = 20;

  // Returns an empty text for a skipped record, which may still end its document.
  std::vector<KeyTexts> texts_of(const Record& record) {
    const InputFile& file = files_[record.file];
    try {
      std::vector<KeyTexts> texts =
          record_texts(record, file.format, wanted_.text.json_keys, TextEncoding::kUtf8);
      read_any_ = true;
      return texts;
    } catch (const Error& error) {
      std::string what = concat(file.path, ":", record.line, ": ", error.what());
      // If the first is bad, all may be: leaving them out would be poor advice.
      BEV_CHECK(wanted_.text.on_error == BadRecords::kSkip, ErrorKind::kInput, what,
                read_any_ ? "\n--on-error skip leaves such documents out" : "");
      if (++skipped_ <= kSkippedShown) log_warning(concat(what, "; skipped"));
      return {{std::string()}};
    }
  }

  const TokenizerTrainOptions& wanted_;
  std::vector<InputFile> files_;
  std::vector<std::vector<FileRange>> parts_;
  std::unique_ptr<TextSource> source_;
  std::int64_t skipped_ = 0;
  bool read_any_ = false;
};

// Checks early that the folder can be written, before the work starts.
void check_writable(const std::string& folder) {
  make_directories(folder);
  BEV_CHECK(::access(folder.c_str(), W_OK | X_OK) == 0, ErrorKind::kIo, folder,
            ": this folder cannot be written to");
}

int run_tokenizer_train(TokenizerTrainOptions& wanted, const CommandInput& input) {
  input.options.add_problems(wanted.problems());
  input.options.throw_problems();
  if (input.launch.process != 0) return kExitOk;  // one process does the work
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
    std::string why =
        wanted.min_frequency > 1
            ? fmt::format("no other pair comes {} times (--min-frequency)", wanted.min_frequency)
            : "the text has no more pairs";
    log_warning(fmt::format("{}: the vocabulary has {} tokens instead of {}", why,
                            trained.tokens.size(), wanted.vocab_size));
  }
  log_info(fmt::format("{}: {} tokens from {} in {}", wanted.output, trained.tokens.size(),
                       count_of(static_cast<std::int64_t>(different), "different word"),
                       format_duration(monotonic_seconds() - start)));
  return kExitOk;
}

}  // namespace

const Command kTokenizerTrainCommand = {
    .name = "tokenizer train",
    .summary = "make a byte-level BPE tokenizer from text",
    .examples =
        "bevatron tokenizer train --input books/ web.jsonl --vocab-size 32000 --output DIR\n"
        "bevatron tokenizer train --input code/ --vocab-size 8192 --pattern gpt2 --special-tokens "
        "\"<|endoftext|>\" \"<|pad|>\" --output DIR",
    .call = call_of<TokenizerTrainOptions, run_tokenizer_train>};

}  // namespace bev
