#include "tokenizer/pipeline_tokenizer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <utility>

#include "tokenizer/text/utf8.h"

namespace bev {

struct PipelineTokenizer::Memory {
  std::unique_ptr<ModelMemory> model;
  WordCache cache;
  Pieces pieces;
  std::vector<AddedTokens::Part> raw_parts, normalized_parts;
};

// Working memories not in use. A thread gets its own one back, with the words it has cached:
// another thread's would have to move between CPU caches.
class PipelineTokenizer::Pool {
 public:
  ~Pool() {
    for (Slot& slot : slots_) delete slot.memory.load();
  }
  // Returns the thread's own, else any, else a new one: there are never many more than active
  // threads.
  std::unique_ptr<Memory> take(const WordModel& model) {
    for (std::size_t i = 0, at = own_slot(); i < slots_.size();
         ++i, at = (at + 1) % slots_.size()) {
      if (slots_[at].memory.load(std::memory_order_relaxed) == nullptr) continue;
      if (Memory* found = slots_[at].memory.exchange(nullptr)) {
        return std::unique_ptr<Memory>(found);
      }
    }
    auto memory = std::make_unique<Memory>();
    memory->model = model.make_memory();
    return memory;
  }
  void give_back(std::unique_ptr<Memory> memory) {
    for (std::size_t i = 0, at = own_slot(); i < slots_.size();
         ++i, at = (at + 1) % slots_.size()) {
      Memory* none = nullptr;
      if (slots_[at].memory.compare_exchange_strong(none, memory.get())) {
        static_cast<void>(memory.release());
        return;
      }
    }
  }

 private:
  struct alignas(64) Slot {
    std::atomic<Memory*> memory = nullptr;
  };
  // First slot that this thread tries.
  std::size_t own_slot() const {
    return std::hash<std::thread::id>()(std::this_thread::get_id()) % slots_.size();
  }

  std::array<Slot, 64> slots_;
};

PipelineTokenizer::PipelineTokenizer(PipelineParts parts)
    : parts_(std::move(parts)),
      vocab_size_(parts_.model->vocabulary().end_id()),
      pool_(std::make_unique<Pool>()) {
  for (const AddedToken& token : parts_.added.all()) {
    vocab_size_ = std::max<std::int64_t>(vocab_size_, token.id + 1);
  }
}

PipelineTokenizer::~PipelineTokenizer() = default;

void PipelineTokenizer::encode_word(std::string_view word, const WordCache::Key& key,
                                    Memory& memory, std::vector<std::int32_t>& ids) const {
  if (word.size() > WordCache::kMostBytes) {
    parts_.model->encode(word, *memory.model, ids);
    return;
  }
  std::span<const std::int32_t> known = memory.cache.find(key, word.size());
  if (!known.empty()) {
    ids.insert(ids.end(), known.begin(), known.end());
    return;
  }
  std::size_t before = ids.size();
  parts_.model->encode(word, *memory.model, ids);
  memory.cache.keep(key, word.size(), std::span(ids).subspan(before));
}

// The cache exceeds the CPU caches, so words are looked up in groups: entries are prefetched while
// the following words are still being split. next_word() returns a word and the number of bytes
// readable from its start, or an empty word at the end.
template <class NextWord>
void PipelineTokenizer::encode_in_groups(NextWord next_word, Memory& memory,
                                         std::vector<std::int32_t>& ids) const {
  constexpr std::size_t kGroup = 16;
  std::array<std::string_view, kGroup> words;
  std::array<WordCache::Key, kGroup> keys;
  for (std::size_t count = kGroup; count == kGroup;) {
    for (count = 0; count < kGroup; ++count) {
      auto [word, readable] = next_word();
      if (word.empty()) break;
      words[count] = word;
      if (word.size() > WordCache::kMostBytes) continue;
      keys[count] = WordCache::key_of(word, readable);
      memory.cache.prefetch(keys[count]);
    }
    for (std::size_t i = 0; i < count; ++i) encode_word(words[i], keys[i], memory, ids);
  }
}

// Encodes normalized text without added tokens.
void PipelineTokenizer::encode_words(std::string_view text, std::size_t origin, Memory& memory,
                                     std::vector<std::int32_t>& ids) const {
  if (text.empty()) return;
  using Word = std::pair<std::string_view, std::size_t>;
  if (parts_.splitter) {
    auto next_word = [&, at = std::size_t{0}]() mutable -> Word {
      if (at == text.size()) return {};
      std::size_t begin = std::exchange(at, parts_.splitter->word_end(text, at));
      return {text.substr(begin, at - begin), text.size() - begin};
    };
    encode_in_groups(next_word, memory, ids);
    return;
  }
  Pieces& pieces = memory.pieces;
  pieces.text.assign(text);
  pieces.pieces.assign(1, {0, text.size(), origin});
  if (parts_.pre_tokenizer) parts_.pre_tokenizer->apply(pieces);
  auto next_word = [&, i = std::size_t{0}]() mutable -> Word {
    if (i == pieces.pieces.size()) return {};
    std::size_t readable = pieces.text.size() - pieces.pieces[i].begin;
    return {pieces[i++], readable};
  };
  encode_in_groups(next_word, memory, ids);
}

// Encodes text without raw added tokens: normalizes it, then splits it at the normalized ones.
void PipelineTokenizer::encode_plain(std::string_view text, bool first, Memory& memory,
                                     std::vector<std::int32_t>& ids) const {
  std::size_t origin = first ? point_bytes(text[0]) : 0;
  NormalizedText normalized;
  if (parts_.normalizer) {
    normalized = NormalizedText(std::string(text), origin);
    parts_.normalizer->apply(normalized);
    text = normalized.text;
    origin = normalized.origin_bytes;
  }
  memory.normalized_parts.clear();
  parts_.added.split(text, true, memory.normalized_parts);
  for (const AddedTokens::Part& part : memory.normalized_parts) {
    if (part.token != nullptr) {
      ids.push_back(part.token->id);
    } else {
      std::size_t left = origin - std::min(origin, part.begin);
      encode_words(part.text, std::min(left, part.text.size()), memory, ids);
    }
  }
}

std::vector<std::int32_t> PipelineTokenizer::encode(std::string_view text) const {
  std::string replaced;
  if (!is_valid_utf8(text)) {
    replaced = to_valid_utf8(text);
    text = replaced;
  }
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  std::unique_ptr<Memory> memory = pool_->take(*parts_.model);
  memory->raw_parts.clear();
  parts_.added.split(text, false, memory->raw_parts);
  for (const AddedTokens::Part& part : memory->raw_parts) {
    if (part.token != nullptr) {
      ids.push_back(part.token->id);
    } else {
      encode_plain(part.text, part.begin == 0, *memory, ids);
    }
  }
  pool_->give_back(std::move(memory));
  return ids;
}

void PipelineTokenizer::add_special_tokens(std::vector<std::int32_t>& ids) const {
  parts_.post_processor.add_special_tokens(ids);
}

std::string PipelineTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (std::int32_t id : ids) {
    if (const AddedToken* added = parts_.added.find(id)) {
      tokens.push_back(added->shown);
    } else if (const std::string* text = parts_.model->vocabulary().text(id)) {
      tokens.push_back(*text);
    }
  }
  std::string_view between = " ";
  if (parts_.decoder) {
    parts_.decoder->apply(tokens);
    between = "";
  }
  std::string out;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) out.append(between);
    out.append(tokens[i]);
  }
  return parts_.clean_up_spaces ? bev::clean_up_spaces(std::move(out)) : out;
}

std::optional<std::int32_t> PipelineTokenizer::token_id(std::string_view token) const {
  if (const AddedToken* added = parts_.added.find(token)) return added->id;
  return parts_.model->vocabulary().find(token);
}

std::optional<std::string> PipelineTokenizer::token_text(std::int32_t id) const {
  if (const AddedToken* added = parts_.added.find(id)) return added->content;
  const std::string* text = parts_.model->vocabulary().text(id);
  if (text == nullptr) return std::nullopt;
  return *text;
}

bool PipelineTokenizer::is_special(std::int32_t id) const {
  const AddedToken* added = parts_.added.find(id);
  return added != nullptr && added->special;
}

}  // namespace bev
