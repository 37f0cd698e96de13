#include "tokenizer/models/vocabulary.h"

#include <deque>
#include <unordered_map>

#include "base/error.h"
#include "base/json_check.h"

namespace bev {

struct Vocabulary::Index {
  std::deque<std::string> texts;  // a deque keeps their addresses stable
  std::unordered_map<std::string_view, std::int32_t> ids;
  std::vector<const std::string*> by_id;
};

Vocabulary::Vocabulary() : index_(std::make_unique<Index>()) {}
Vocabulary::~Vocabulary() = default;
Vocabulary::Vocabulary(Vocabulary&&) noexcept = default;
Vocabulary& Vocabulary::operator=(Vocabulary&&) noexcept = default;

void Vocabulary::add(std::string text, std::int64_t id, std::string_view source) {
  BEV_CHECK(id >= 0 && id < kMostTokenIds, ErrorKind::kInput, source, ": the id ", id, " of ",
            quote(text), " is not one of a vocabulary");
  const std::string& kept = index_->texts.emplace_back(std::move(text));
  auto slot = static_cast<std::size_t>(id);
  if (slot >= index_->by_id.size()) index_->by_id.resize(slot + 1, nullptr);
  if (index_->by_id[slot] == nullptr) index_->by_id[slot] = &kept;
  index_->ids.try_emplace(kept, static_cast<std::int32_t>(id));
}

std::optional<std::int32_t> Vocabulary::find(std::string_view text) const {
  auto found = index_->ids.find(text);
  if (found == index_->ids.end()) return std::nullopt;
  return found->second;
}

const std::string* Vocabulary::text(std::int32_t id) const {
  auto slot = static_cast<std::size_t>(id);
  return id >= 0 && slot < index_->by_id.size() ? index_->by_id[slot] : nullptr;
}

std::int32_t Vocabulary::end_id() const { return static_cast<std::int32_t>(index_->by_id.size()); }
std::size_t Vocabulary::size() const { return index_->texts.size(); }

}  // namespace bev
