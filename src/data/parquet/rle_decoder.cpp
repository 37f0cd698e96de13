#include "data/parquet/rle_decoder.h"

#include <algorithm>

#include "base/divide.h"
#include "base/error.h"

namespace bev {

namespace {
[[noreturn]] void fail_end() {
  BEV_FAIL(ErrorKind::kInput, "a page is damaged: its levels or indices end early");
}
}  // namespace

void RleDecoder::start_run() {
  std::uint64_t header = 0;
  for (int shift = 0;; shift += 7) {
    if (at_ == bytes_.size() || shift > 28) fail_end();
    auto byte = static_cast<unsigned char>(bytes_[at_++]);
    header |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  packed_ = (header & 1) == 1;
  if (packed_) {
    // Groups of eight values; the last bytes may be missing behind the last value.
    left_ = (header >> 1) * 8;
    bit_ = static_cast<std::uint64_t>(at_) * 8;
    std::uint64_t bytes = (header >> 1) * bit_width_;
    at_ += static_cast<std::size_t>(std::min<std::uint64_t>(bytes, bytes_.size() - at_));
    end_bit_ = static_cast<std::uint64_t>(at_) * 8;
    return;
  }
  left_ = header >> 1;
  repeated_ = 0;
  for (std::uint32_t i = 0; i < ceil_div(bit_width_, 8u); ++i) {
    if (at_ == bytes_.size()) fail_end();
    repeated_ |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes_[at_++])) << (8 * i);
  }
}

std::uint32_t RleDecoder::next() {
  while (left_ == 0) start_run();
  --left_;
  if (!packed_) return repeated_;
  if (bit_ + bit_width_ > end_bit_) fail_end();
  std::uint64_t value = 0;
  for (std::uint32_t got = 0; got < bit_width_;) {
    std::uint64_t byte = static_cast<unsigned char>(bytes_[static_cast<std::size_t>(bit_ / 8)]);
    auto skip = static_cast<std::uint32_t>(bit_ % 8);
    std::uint32_t take = std::min(8 - skip, bit_width_ - got);
    value |= (byte >> skip & ((1u << take) - 1)) << got;
    got += take;
    bit_ += take;
  }
  return static_cast<std::uint32_t>(value);
}

}  // namespace bev
