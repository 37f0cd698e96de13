#include "tokenizer/models/word_piece_model.h"

#include "base/error.h"
#include "base/json_check.h"
#include "tokenizer/text/utf8.h"

namespace bev {

namespace {

std::int32_t need_unknown(const Vocabulary& vocabulary, std::string_view unknown) {
  std::optional<std::int32_t> id = vocabulary.find(unknown);
  BEV_CHECK(id.has_value(), ErrorKind::kInput, "the unknown token ", quote(unknown),
            " is not in the vocabulary");
  return *id;
}

}  // namespace

WordPieceModel::WordPieceModel(Vocabulary vocabulary, WordPieceOptions options)
    : WordModel(std::move(vocabulary)), options_(std::move(options)) {
  for (std::int32_t id = 0; id < vocabulary_.end_id(); ++id) {
    if (const std::string* text = vocabulary_.text(id)) trie_.add(*text, id);
  }
  continuing_node_ = ByteTrie::root();
  for (char byte : options_.continuing_prefix) {
    if (continuing_node_ == ByteTrie::kNone) break;
    continuing_node_ = trie_.step(continuing_node_, static_cast<unsigned char>(byte));
  }
}

std::unique_ptr<ModelMemory> WordPieceModel::make_memory() const {
  return std::make_unique<ModelMemory>();
}

void WordPieceModel::encode(std::string_view word, ModelMemory&,
                            std::vector<std::int32_t>& ids) const {
  const std::size_t before = ids.size();
  bool known = count_points(word) <= options_.most_characters;
  for (std::size_t at = 0; known && at < word.size();) {
    std::int32_t node = at == 0 ? ByteTrie::root() : continuing_node_;
    std::int32_t best = ByteTrie::kNone;
    std::size_t best_end = at;
    for (std::size_t end = at; end < word.size() && node != ByteTrie::kNone;) {
      node = trie_.step(node, static_cast<unsigned char>(word[end++]));
      if (node == ByteTrie::kNone || trie_.value(node) == ByteTrie::kNone) continue;
      best = trie_.value(node);
      best_end = end;
    }
    known = best != ByteTrie::kNone;
    if (known) ids.push_back(best);
    at = best_end;
  }
  if (known) return;
  ids.resize(before);
  ids.push_back(need_unknown(vocabulary_, options_.unknown));
}

WordLevelModel::WordLevelModel(Vocabulary vocabulary, std::string unknown)
    : WordModel(std::move(vocabulary)), unknown_(std::move(unknown)) {}

std::unique_ptr<ModelMemory> WordLevelModel::make_memory() const {
  return std::make_unique<ModelMemory>();
}

void WordLevelModel::encode(std::string_view word, ModelMemory&,
                            std::vector<std::int32_t>& ids) const {
  std::optional<std::int32_t> id = vocabulary_.find(word);
  ids.push_back(id ? *id : need_unknown(vocabulary_, unknown_));
}

}  // namespace bev
