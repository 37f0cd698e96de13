// Parquet's hybrid of run-length and bit-packed integers: levels, indices into dictionaries.
#pragma once

#include <cstdint>
#include <string_view>

namespace bev {

class RleDecoder {
 public:
  RleDecoder() = default;
  // The bytes must outlive the decoder; `bit_width` is at most 32.
  RleDecoder(std::string_view bytes, std::uint32_t bit_width)
      : bytes_(bytes), bit_width_(bit_width) {}

  // Throws Error(kInput) behind the last value.
  std::uint32_t next();

 private:
  void start_run();

  std::string_view bytes_;
  std::uint32_t bit_width_ = 0;
  std::size_t at_ = 0;                   // first byte behind the run
  std::uint64_t left_ = 0;               // values left in the run
  bool packed_ = false;                  // each value has bits of its own
  std::uint32_t repeated_ = 0;           // the value of a run that is not packed
  std::uint64_t bit_ = 0, end_bit_ = 0;  // next bit of a packed run, and its end
};

}  // namespace bev
