#include "tokenizer/training/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <span>
#include <unordered_map>

#include "base/error.h"
#include "tokenizer/pipeline/byte_level.h"
#include "tokenizer/training/pair_counts.h"

namespace bev {

namespace {

// Tokens so far. A repeated text keeps its id.
class TokenList {
 public:
  std::int32_t add(std::string text) {
    auto [found, fresh] = ids_.emplace(std::move(text), static_cast<std::int32_t>(tokens.size()));
    if (fresh) tokens.push_back(found->first);
    return found->second;
  }
  std::vector<std::string> tokens;

 private:
  std::unordered_map<std::string, std::int32_t> ids_;
};

// Ids of the bytes, in the order of their byte-to-unicode characters.
std::array<std::int32_t, 256> add_bytes(TokenList& list) {
  std::array<std::size_t, 256> bytes;
  for (std::size_t byte = 0; byte < bytes.size(); ++byte) bytes[byte] = byte;
  std::ranges::sort(bytes, {}, [](std::size_t byte) { return byte_points()[byte]; });
  std::array<std::int32_t, 256> ids;
  for (std::size_t byte : bytes) {
    std::string text;
    append_point(text, byte_points()[byte]);
    ids[byte] = list.add(std::move(text));
  }
  return ids;
}

// Words as token sequences, which shrink as pairs are merged.
struct Words {
  struct Word {
    std::uint64_t begin;  // offset in symbols
    std::uint32_t length;
    std::int64_t count;
  };
  std::vector<std::int32_t> symbols;
  std::vector<Word> words;
};

Words make_words(std::vector<WordTable> tables, const std::array<std::int32_t, 256>& byte_ids) {
  Words out;
  std::size_t words = 0, bytes = 0;
  for (const WordTable& table : tables) words += table.size(), bytes += table.text_bytes();
  BEV_CHECK(words < std::size_t{1} << 32, ErrorKind::kInput, "the text has ", words,
            " different words; that is too many");
  out.words.reserve(words);
  out.symbols.reserve(bytes);
  for (WordTable& table : tables) {
    table.for_each([&](std::string_view word, std::int64_t count) {
      if (word.size() < 2) return;  // has no pair
      out.words.push_back({out.symbols.size(), static_cast<std::uint32_t>(word.size()), count});
      for (char byte : word) out.symbols.push_back(byte_ids[static_cast<unsigned char>(byte)]);
    });
    table = {};  // frees its memory
  }
  return out;
}

// A candidate pair and the words that contained it when it was pushed. A pair that is formed again
// is pushed again, with its new words.
struct Candidate {
  std::int64_t count;
  std::uint64_t key;
  std::uint64_t begin;  // offset in places_
  std::uint32_t size;

  // The top of the heap is the highest count, then the smallest pair.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : key > other.key;
  }
};

class MergeFinder {
 public:
  explicit MergeFinder(Words words) : words_(std::move(words)) {
    for (std::size_t i = 0; i < words_.words.size(); ++i) {
      const Words::Word& word = words_.words[i];
      const std::int32_t* symbols = &words_.symbols[word.begin];
      for (std::uint32_t at = 0; at + 1 < word.length; ++at) {
        form(pair_key(symbols[at], symbols[at + 1]), static_cast<std::uint32_t>(i), word.count);
      }
    }
    offer_formed();
  }

  // Next pair to merge; nullptr if none is frequent enough.
  const Candidate* best(std::int64_t min_frequency) {
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end());
      best_ = heap_.back();
      // Counts in the heap are updated lazily, when a candidate reaches the top.
      std::int64_t now = counts_[best_.key];
      if (now == best_.count) {
        heap_.pop_back();
        return now >= std::max<std::int64_t>(min_frequency, 1) ? &best_ : nullptr;
      }
      heap_.back().count = now;
      std::push_heap(heap_.begin(), heap_.end());
    }
    return nullptr;
  }

  // Replaces the pair by `id` in its words. The pair's own count is not reset, as in the reference,
  // which matters if the pair is formed again.
  void merge(const Candidate& pair, std::int32_t id) {
    for (std::uint64_t i = pair.begin; i < pair.begin + pair.size; ++i) {
      merge_in(places_[i], static_cast<std::int32_t>(pair.key >> 32),
               static_cast<std::int32_t>(pair.key & 0xffffffffu), id);
    }
    offer_formed();
  }

 private:
  struct Formed {
    std::uint64_t key;
    std::uint32_t word;
    auto operator<=>(const Formed&) const = default;
  };

  void form(std::uint64_t key, std::uint32_t word, std::int64_t count) {
    counts_[key] += count;
    if (formed_.empty() || formed_.back() != Formed{key, word}) formed_.push_back({key, word});
  }

  void merge_in(std::uint32_t number, std::int32_t left, std::int32_t right, std::int32_t id) {
    Words::Word& word = words_.words[number];
    std::span<std::int32_t> symbols(&words_.symbols[word.begin], word.length);
    std::size_t kept = 0;
    for (std::size_t at = 0; at < symbols.size();) {
      if (symbols[at] != left || at + 1 == symbols.size() || symbols[at + 1] != right) {
        symbols[kept++] = symbols[at++];
        continue;
      }
      at += 2;
      if (kept > 0) {
        counts_[pair_key(symbols[kept - 1], left)] -= word.count;
        form(pair_key(symbols[kept - 1], id), number, word.count);
      }
      if (at < symbols.size()) {
        counts_[pair_key(right, symbols[at])] -= word.count;
        form(pair_key(id, symbols[at]), number, word.count);
      }
      symbols[kept++] = id;
    }
    word.length = static_cast<std::uint32_t>(kept);
  }

  // Pushes candidates for the newly formed pairs.
  void offer_formed() {
    std::ranges::sort(formed_);
    auto same = std::ranges::unique(formed_);
    formed_.erase(same.begin(), same.end());
    for (std::size_t i = 0; i < formed_.size();) {
      Candidate candidate{counts_[formed_[i].key], formed_[i].key, places_.size(), 0};
      for (; i < formed_.size() && formed_[i].key == candidate.key; ++i) {
        places_.push_back(formed_[i].word);
      }
      candidate.size = static_cast<std::uint32_t>(places_.size() - candidate.begin);
      if (candidate.count <= 0) {
        places_.resize(candidate.begin);
        continue;
      }
      heap_.push_back(candidate);
      std::push_heap(heap_.begin(), heap_.end());
    }
    formed_.clear();
  }

  Words words_;
  PairCounts counts_;
  std::vector<std::uint32_t> places_;  // word indices of the candidates
  std::vector<Candidate> heap_;
  std::vector<Formed> formed_;  // since candidates were last pushed
  Candidate best_{};
};

// If a pair was merged twice, only the later merge is kept, as in the reference.
void drop_repeated(std::vector<std::pair<std::int32_t, std::int32_t>>& merges) {
  std::unordered_map<std::uint64_t, std::size_t> last;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    last[pair_key(merges[i].first, merges[i].second)] = i;
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    if (last[pair_key(merges[i].first, merges[i].second)] == i) merges[kept++] = merges[i];
  }
  merges.resize(kept);
}

}  // namespace

TrainedBpe train_bpe(std::vector<WordTable> words, const BpeTrainerOptions& options,
                     TrainingWatcher& watcher) {
  TokenList list;
  for (const std::string& token : options.special_tokens) list.add(token);
  std::array<std::int32_t, 256> byte_ids = add_bytes(list);
  MergeFinder finder(make_words(std::move(words), byte_ids));
  TrainedBpe out;
  while (static_cast<std::int64_t>(list.tokens.size()) < options.vocab_size) {
    const Candidate* pair = finder.best(options.min_frequency);
    if (pair == nullptr) break;
    auto left = static_cast<std::int32_t>(pair->key >> 32);
    auto right = static_cast<std::int32_t>(pair->key & 0xffffffffu);
    std::int32_t id = list.add(list.tokens[static_cast<std::size_t>(left)] +
                               list.tokens[static_cast<std::size_t>(right)]);
    out.merges.emplace_back(left, right);
    finder.merge(*pair, id);
    watcher.merged(static_cast<std::int64_t>(list.tokens.size()), options.vocab_size);
  }
  drop_repeated(out.merges);
  out.tokens = std::move(list.tokens);
  return out;
}

}  // namespace bev
