// Random-access token sequences of known lengths, from which samples are cut.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/indexed/packed_array.h"

namespace bev {

class TokenSequences {
 public:
  virtual ~TokenSequences() = default;

  virtual const std::string& name() const = 0;  // for messages
  virtual PackedArray<std::int32_t> lengths() const = 0;
  // Reads tokens [offset, offset + tokens.size()) of a sequence, which must exist. Thread safe.
  virtual void read(std::int64_t sequence, std::int64_t offset,
                    std::span<std::int32_t> tokens) const = 0;
};

// Megatron's mock documents: 100,000 of 1 to 4095 tokens, each counting 1, 2, 3, ... modulo the
// vocabulary and ending with the end-of-document token.
class MockSequences : public TokenSequences {
 public:
  MockSequences(std::int64_t vocab_size, std::int32_t eod_id);

  const std::string& name() const override { return name_; }
  PackedArray<std::int32_t> lengths() const override { return PackedArray<std::int32_t>(lengths_); }
  void read(std::int64_t sequence, std::int64_t offset,
            std::span<std::int32_t> tokens) const override;

 private:
  std::string name_ = "mock data";
  std::int64_t vocab_size_;
  std::int32_t eod_id_;
  std::vector<std::int32_t> lengths_;
};

}  // namespace bev
