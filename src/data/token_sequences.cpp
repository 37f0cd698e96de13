#include "data/token_sequences.h"

#include "base/error.h"
#include "data/random/pcg64.h"

namespace bev {

MockSequences::MockSequences(std::int64_t vocab_size, std::int32_t eod_id)
    : vocab_size_(vocab_size), eod_id_(eod_id) {
  constexpr std::size_t kDocuments = 100000;
  constexpr std::int32_t kLengthEnd = 4096;
  BEV_CHECK(vocab_size > 0 && eod_id >= 0 && eod_id < vocab_size, ErrorKind::kConfig,
            "mock data: needs a vocabulary and an end-of-document token in it, not ", vocab_size,
            " and ", eod_id);
  Pcg64 random(0);
  lengths_.reserve(kDocuments);
  for (std::size_t i = 0; i < kDocuments; ++i) lengths_.push_back(random.integer(1, kLengthEnd));
}

void MockSequences::read(std::int64_t sequence, std::int64_t offset,
                         std::span<std::int32_t> tokens) const {
  std::int64_t last = lengths_[static_cast<std::size_t>(sequence)] - 1;
  for (std::int32_t& token : tokens) {
    token = offset == last ? eod_id_ : static_cast<std::int32_t>((offset + 1) % vocab_size_);
    ++offset;
  }
}

}  // namespace bev
