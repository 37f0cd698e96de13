// Decompression of Parquet pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bev {

// Codec numbers of the format.
enum class ParquetCodec : std::uint8_t {
  kUncompressed = 0,
  kSnappy = 1,
  kGzip = 2,
  kLzo = 3,
  kBrotli = 4,
  kLz4 = 5,
  kZstd = 6,
  kLz4Raw = 7,
};

// The `size` bytes that `bytes` decompress to. Throws Error(kInput) if the codec is not supported
// or the data is damaged; memory grows with the data, not with the size that is claimed.
std::string decompress_page(ParquetCodec codec, std::string_view bytes, std::size_t size);

}  // namespace bev
