#include "tokenizer/training/word_counter.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <optional>
#include <utility>

#include "base/thread_pool.h"
#include "tokenizer/formats/json_value.h"
#include "tokenizer/pipeline/pre_tokenizer.h"
#include "tokenizer/text/utf8.h"

namespace bev {

namespace {

constexpr std::size_t kMostPieceBytes = std::size_t{1} << 20;
constexpr std::size_t kParts = 64;  // parts of the table, by the hash of a word
constexpr int kPartShift = 58;  // selects the hash's upper bits; a part's table uses the lower ones
static_assert(std::uint64_t{1} << (64 - kPartShift) == kParts);

using PartTables = std::array<WordTable, kParts>;

// Approximate memory for counting and merging words.
std::size_t cost_of(std::size_t words, std::size_t text_bytes) {
  constexpr std::size_t kPerWord = 80, kPerByte = 16;
  return kPerWord * words + kPerByte * text_bytes;
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_visible(char c) { return c > ' ' && c < '\x7f'; }

// Where to split a text that is too long. The usual expressions always end a word between a line
// end without trailing spaces and a letter.
std::size_t piece_end(std::string_view text) {
  if (text.size() <= kMostPieceBytes) return text.size();
  for (std::size_t end = kMostPieceBytes; end > kMostPieceBytes / 2; --end) {
    if (text[end - 1] == '\n' && is_letter(text[end]) && is_visible(text[end - 2])) return end;
  }
  std::size_t end = kMostPieceBytes;
  constexpr std::size_t kMostContinuing = 3;  // UTF-8 continuation bytes
  for (std::size_t i = 0; i < kMostContinuing && (text[end] & 0xc0) == 0x80; ++i) --end;
  return end;
}

// State of one thread.
struct Worker {
  PartTables tables;
  Pieces pieces;
  std::exception_ptr failure;
};

}  // namespace

struct WordCounter::State {
  State(const WordCounterOptions& options, TrainingWatcher& progress)
      : document(options.pre_tokenizer, "the pattern"),
        splitter(only_splitter(document.root())),
        pre_tokenizer(make_pre_tokenizer(document.root(), false)),
        watcher(progress),
        max_bytes(options.max_bytes),
        round_bytes(options.round_bytes),
        pool(options.workers),
        workers(static_cast<std::size_t>(options.workers)) {}

  void count_piece(std::string_view piece, Worker& worker) const;

  JsonDocument document;
  std::optional<Splitter> splitter;  // replaces the pre-tokenizer if it is equivalent
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  TrainingWatcher& watcher;
  std::size_t max_bytes, round_bytes;
  ThreadPool pool;
  std::vector<Worker> workers;

  std::string unfinished;  // tail of an unfinished document, too short to be split
  std::string text;        // text of this round
  std::vector<std::size_t> ends;
  std::int64_t counted_bytes = 0;
  PartTables tables;  // counts of the previous rounds
};

void WordCounter::State::count_piece(std::string_view piece, Worker& worker) const {
  std::string valid;
  if (!is_valid_utf8(piece)) {
    valid = to_valid_utf8(piece);
    piece = valid;
  }
  auto count = [&](std::string_view word) {
    std::uint64_t hash = hash_word(word);
    worker.tables[hash >> kPartShift].add(word, hash, 1);
  };
  if (splitter) {
    for (std::size_t at = 0; at < piece.size();) {
      std::size_t end = splitter->word_end(piece, at);
      count(piece.substr(at, end - at));
      at = end;
    }
    return;
  }
  worker.pieces.text.assign(piece);
  worker.pieces.pieces.assign(1, {0, piece.size(), 0});
  pre_tokenizer->apply(worker.pieces);
  for (std::size_t i = 0; i < worker.pieces.pieces.size(); ++i) count(worker.pieces[i]);
}

WordCounter::WordCounter(const WordCounterOptions& options, TrainingWatcher& watcher)
    : state_(std::make_unique<State>(options, watcher)) {}

WordCounter::~WordCounter() = default;

void WordCounter::add_text(std::string_view text, bool ends_document) {
  std::string& unfinished = state_->unfinished;
  const bool whole = unfinished.empty() && ends_document;
  if (!whole) unfinished.append(text);
  std::string_view rest = whole ? text : unfinished;
  while (rest.size() > kMostPieceBytes || (ends_document && !rest.empty())) {
    std::size_t end = piece_end(rest);
    add_piece(rest.substr(0, end));
    rest.remove_prefix(end);
  }
  if (!whole) unfinished.erase(0, unfinished.size() - rest.size());
}

void WordCounter::add_piece(std::string_view piece) {
  state_->text.append(piece);
  state_->ends.push_back(state_->text.size());
  if (state_->text.size() >= state_->round_bytes) count_round();
}

void WordCounter::count_round() {
  State& state = *state_;
  std::atomic<std::size_t> next = 0;
  state.pool.run(static_cast<std::int64_t>(state.workers.size()), [&](std::int64_t number) {
    Worker& worker = state.workers[static_cast<std::size_t>(number)];
    try {
      for (std::size_t i; (i = next++) < state.ends.size();) {
        std::size_t begin = i == 0 ? 0 : state.ends[i - 1];
        state.count_piece(std::string_view(state.text).substr(begin, state.ends[i] - begin),
                          worker);
      }
    } catch (...) {
      worker.failure = std::current_exception();
    }
  });
  for (const Worker& worker : state.workers) {
    if (worker.failure) std::rethrow_exception(worker.failure);
  }
  state.pool.run(kParts, [&](std::int64_t part) {
    for (Worker& worker : state.workers) {
      WordTable& table = worker.tables[static_cast<std::size_t>(part)];
      state.tables[static_cast<std::size_t>(part)].add(table);
      table.clear();
    }
  });
  state.counted_bytes += static_cast<std::int64_t>(state.text.size());
  state.text.clear();
  state.ends.clear();
  drop_rare_words();
  state.watcher.counted(state.counted_bytes);
}

// Drops words down to half of the limit, so that it does not happen in every round.
void WordCounter::drop_rare_words() {
  std::size_t total = 0;
  for (const WordTable& table : state_->tables) total += cost_of(table.size(), table.text_bytes());
  if (total <= state_->max_bytes) return;
  constexpr std::size_t kCounts = 4096;  // more frequent words are always kept
  std::array<std::size_t, kCounts> costs{}, words{};
  for (const WordTable& table : state_->tables) {
    table.for_each([&](std::string_view word, std::int64_t count) {
      if (count >= static_cast<std::int64_t>(kCounts)) return;
      costs[static_cast<std::size_t>(count)] += cost_of(1, word.size());
      ++words[static_cast<std::size_t>(count)];
    });
  }
  std::size_t least = 1, dropped = 0;
  for (; total > state_->max_bytes / 2 && least < kCounts; ++least) {
    total -= costs[least];
    dropped += words[least];
  }
  for (WordTable& table : state_->tables) table.keep_from(static_cast<std::int64_t>(least));
  state_->watcher.dropped(static_cast<std::int64_t>(dropped), static_cast<std::int64_t>(least) - 1);
}

std::vector<WordTable> WordCounter::finish() {
  if (!state_->text.empty()) count_round();
  std::vector<WordTable> tables;
  for (WordTable& table : state_->tables) tables.push_back(std::exchange(table, {}));
  return tables;
}

}  // namespace bev
