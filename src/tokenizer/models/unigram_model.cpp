#include "tokenizer/models/unigram_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "tokenizer/models/unigram_path.h"

namespace bev {

struct UnigramModel::Memory : ModelMemory {
  std::vector<PathNode<double>> nodes;
  std::vector<std::int32_t> ends;  // ends of the pieces, last first
};

UnigramModel::UnigramModel(Vocabulary vocabulary, std::vector<double> scores,
                           std::optional<std::int32_t> unknown, bool byte_fallback)
    : WordModel(std::move(vocabulary)),
      scores_(std::move(scores)),
      unknown_(unknown),
      byte_fallback_(byte_fallback) {
  constexpr double kUnknownPenalty = 10.0;
  double least = std::numeric_limits<double>::infinity();
  for (double score : scores_) least = std::min(least, score);
  unknown_score_ = least - kUnknownPenalty;
  for (std::int32_t id = 0; id < vocabulary_.end_id(); ++id) {
    const std::string* text = vocabulary_.text(id);
    if (text != nullptr && !text->empty()) trie_.add(*text, id);
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
}

std::unique_ptr<ModelMemory> UnigramModel::make_memory() const {
  return std::make_unique<Memory>();
}

// A run of unknown characters: a token after all, byte-fallback tokens, or the unknown token.
void UnigramModel::add_unknown(std::string_view text, std::vector<std::int32_t>& ids) const {
  if (std::optional<std::int32_t> id = vocabulary_.find(text)) {
    ids.push_back(*id);
    return;
  }
  auto byte_id = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (byte_fallback_ && std::ranges::all_of(text, [&](char byte) { return byte_id(byte) >= 0; })) {
    for (char byte : text) ids.push_back(byte_id(byte));
    return;
  }
  ids.push_back(*unknown_);
}

void UnigramModel::encode(std::string_view word, ModelMemory& memory,
                          std::vector<std::int32_t>& ids) const {
  auto& own = static_cast<Memory&>(memory);
  constexpr std::int32_t kUnknown = -1;
  find_best_path<double>(
      word, trie_, {unknown_.value_or(kUnknown), unknown_score_},
      [&](std::int32_t id, std::size_t) {
        return std::optional(scores_[static_cast<std::size_t>(id)]);
      },
      own.nodes);
  own.ends.clear();
  auto node = [&](std::int32_t end) { return own.nodes[static_cast<std::size_t>(end)]; };
  auto last = static_cast<std::int32_t>(word.size());
  for (std::int32_t end = last; end > 0; end = node(end).begin) own.ends.push_back(end);
  for (std::size_t i = own.ends.size(); i-- > 0;) {
    PathNode<double> piece = node(own.ends[i]);
    BEV_CHECK(piece.id != kUnknown, ErrorKind::kInput,
              "the text has characters without a token, and the vocabulary has no unknown token");
    if (piece.id != unknown_) {
      ids.push_back(piece.id);
      continue;
    }
    // Adjacent unknown pieces are fused.
    auto begin = static_cast<std::size_t>(piece.begin);
    while (i > 0 && node(own.ends[i - 1]).id == unknown_) --i;
    add_unknown(word.substr(begin, static_cast<std::size_t>(own.ends[i]) - begin), ids);
  }
}

}  // namespace bev
