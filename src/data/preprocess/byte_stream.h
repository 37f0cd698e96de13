// Sequential reader of a file, with gzip or zstd decompression chosen by magic bytes, not by name.
// Pipes work. Memory does not grow with the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace bev {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills the whole buffer; returns less only at the end of the file, then 0. Throws Error(kInput)
  // naming the file if it cannot be read or the archive is truncated or corrupt.
  virtual std::size_t read(std::span<char> buffer) = 0;
  // Bytes of the (compressed) file consumed so far; for progress.
  virtual std::int64_t position() const = 0;
};

// Opens a stream from byte `begin` on, which must be 0 for a compressed file.
std::unique_ptr<ByteStream> open_byte_stream(const std::string& path, std::int64_t begin = 0);

// For a regular file.
bool is_compressed(const std::string& path);

}  // namespace bev
