// Content of a file in chunks, for readers of records: the bytes that are read and not yet taken.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/preprocess/byte_stream.h"

namespace bev {

class ChunkedBytes {
 public:
  // Starts at byte `begin`, which is 0 for a compressed file.
  ChunkedBytes(const std::string& path, std::int64_t begin)
      : stream_(open_byte_stream(path, begin)), chunk_(kChunkBytes), offset_(begin) {}

  // Bytes read but not taken; empty at the end of the file.
  std::string_view rest() {
    if (begin_ == end_) {
      begin_ = 0;
      end_ = stream_->read(chunk_);
    }
    return {chunk_.data() + begin_, end_ - begin_};
  }
  void take(std::size_t count) {
    begin_ += count;
    offset_ += static_cast<std::int64_t>(count);
  }

  // File offset of the first byte of rest(), for uncompressed files.
  std::int64_t offset() const { return offset_; }
  // Bytes of the (compressed) file consumed so far; for progress.
  std::int64_t position() const { return stream_->position(); }

 private:
  static constexpr std::size_t kChunkBytes = 1 << 18;

  std::unique_ptr<ByteStream> stream_;
  std::vector<char> chunk_;
  std::size_t begin_ = 0, end_ = 0;  // unread part of the chunk
  std::int64_t offset_ = 0;
};

}  // namespace bev
