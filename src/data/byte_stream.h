// The bytes of a file from front to back, decompressed when it is gzip or zstd: its first bytes
// tell, not its name. Pipes are fine. Memory does not grow with the file.
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
  // Fills the buffer from its start; less than all of it only at the end of the file, and then 0.
  // Error(kInput) naming the file when it cannot be read or its archive is cut or broken.
  virtual std::size_t read(std::span<char> buffer) = 0;
  // Bytes of the file itself that were read so far; for progress.
  virtual std::int64_t position() const = 0;
};

// Plain bytes from `begin` on, which must be 0 unless is_compressed() is false.
std::unique_ptr<ByteStream> open_byte_stream(const std::string& path, std::int64_t begin = 0);

// Of a regular file.
bool is_compressed(const std::string& path);

}  // namespace bev
