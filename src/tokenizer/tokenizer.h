// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // Ids that are not in the vocabulary give nothing. The result need not be valid UTF-8: a
  // character may be cut.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  virtual std::int64_t vocab_size() const = 0;
  // The end-of-document token, if there is one.
  virtual std::optional<std::int32_t> eod() const { return std::nullopt; }
};

// The tokenizer of a Hugging Face folder; nullptr when there is none, or none of a kind that we can
// read. Error(kInput) when tokenizer.json is broken.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder);

}  // namespace bev
