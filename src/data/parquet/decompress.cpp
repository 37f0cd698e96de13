#include "data/parquet/decompress.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/error.h"

namespace bev {

namespace {

constexpr std::size_t kFirstBytes = 1 << 16;

[[noreturn]] void fail(const char* codec, const char* what) {
  BEV_FAIL(ErrorKind::kInput, "its ", codec, " data is broken: ", what);
}

// Snappy's raw format: the size, then literals and copies of earlier bytes.
class SnappyReader {
 public:
  SnappyReader(std::string_view bytes, std::size_t size) : bytes_(bytes), size_(size) {}

  std::string read() {
    if (varint() != size_) fail(kName, "it says another size than the page");
    while (at_ < bytes_.size()) {
      auto tag = static_cast<unsigned char>(bytes_[at_++]);
      if ((tag & 3) == 0) {
        literal(tag >> 2);
      } else if ((tag & 3) == 1) {
        copy(4 + ((tag >> 2) & 7), static_cast<std::size_t>(tag >> 5) << 8 | number(1));
      } else {
        copy(1 + (tag >> 2), number((tag & 3) == 2 ? 2 : 4));
      }
    }
    if (out_.size() != size_) fail(kName, "it ends early");
    return std::move(out_);
  }

 private:
  static constexpr const char* kName = "snappy";

  std::size_t number(std::size_t count) {
    if (count > bytes_.size() - at_) fail(kName, "it ends early");
    std::size_t value = 0;
    for (std::size_t i = 0; i < count; ++i) {
      value |= static_cast<std::size_t>(static_cast<unsigned char>(bytes_[at_++])) << (8 * i);
    }
    return value;
  }
  std::size_t varint() {
    std::size_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
      std::size_t byte = number(1);
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    fail(kName, "its size is too long");
  }
  void check_room(std::size_t count) const {
    if (count > size_ - out_.size()) fail(kName, "it is longer than it says");
  }
  void literal(std::size_t length) {
    if (length >= 60) length = number(length - 59);
    ++length;
    if (length > bytes_.size() - at_) fail(kName, "it ends early");
    check_room(length);
    out_.append(bytes_, at_, length);
    at_ += length;
  }
  void copy(std::size_t length, std::size_t offset) {
    if (offset == 0 || offset > out_.size()) fail(kName, "it copies from before its start");
    check_room(length);
    // Byte by byte: the copy may overlap what it writes.
    for (std::size_t i = 0; i < length; ++i) out_.push_back(out_[out_.size() - offset]);
  }

  std::string_view bytes_;
  std::size_t size_, at_ = 0;
  std::string out_;
};

// Room for the next bytes of an output of at most `size`, growing by doubling.
bool grow(std::string& out, std::size_t size) {
  if (out.size() >= size) return false;
  out.resize(std::min(size, std::max(kFirstBytes, 2 * out.size())));
  return true;
}

std::string inflate_page(std::string_view bytes, std::size_t size) {
  constexpr int kGzipOrZlib = 15 + 32;
  z_stream state{};
  BEV_CHECK(inflateInit2(&state, kGzipOrZlib) == Z_OK, ErrorKind::kInternal, "zlib cannot start");
  std::unique_ptr<z_stream, int (*)(z_stream*)> owner(&state, inflateEnd);
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  state.avail_in = static_cast<uInt>(bytes.size());
  std::string out;
  for (std::size_t done = 0; done < size;) {
    if (done == out.size()) grow(out, size);
    state.next_out = reinterpret_cast<Bytef*>(out.data() + done);
    state.avail_out = static_cast<uInt>(out.size() - done);
    int status = inflate(&state, Z_NO_FLUSH);
    done = out.size() - state.avail_out;
    if (done == size) break;
    if (status == Z_STREAM_END && state.avail_in > 0) status = inflateReset(&state);
    if (status != Z_OK || (state.avail_in == 0 && state.avail_out > 0)) {
      fail("gzip", state.msg != nullptr ? state.msg : "it ends early");
    }
  }
  return out;
}

std::string zstd_page(std::string_view bytes, std::size_t size) {
  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> state(ZSTD_createDStream(),
                                                                      ZSTD_freeDStream);
  BEV_CHECK(state != nullptr, ErrorKind::kInternal, "zstd cannot start");
  std::string out;
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  for (std::size_t done = 0; done < size;) {
    if (done == out.size()) grow(out, size);
    ZSTD_outBuffer to{out.data(), out.size(), done};
    std::size_t read = in.pos;
    std::size_t status = ZSTD_decompressStream(state.get(), &to, &in);
    if (ZSTD_isError(status)) fail("zstd", ZSTD_getErrorName(status));
    if (to.pos == done && in.pos == read) fail("zstd", "it ends early");
    done = to.pos;
  }
  return out;
}

}  // namespace

std::string decompress_page(ParquetCodec codec, std::string_view bytes, std::size_t size) {
  constexpr std::array<const char*, 8> kNames = {"none",   "snappy", "gzip", "LZO",
                                                 "Brotli", "LZ4",    "zstd", "LZ4_RAW"};
  switch (codec) {
    case ParquetCodec::kUncompressed:
      if (bytes.size() != size) fail("uncompressed", "its two sizes differ");
      return std::string(bytes);
    case ParquetCodec::kSnappy:
      return SnappyReader(bytes, size).read();
    case ParquetCodec::kGzip:
      return inflate_page(bytes, size);
    case ParquetCodec::kZstd:
      return zstd_page(bytes, size);
    default:
      break;
  }
  auto number = static_cast<std::size_t>(codec);
  BEV_FAIL(ErrorKind::kInput, "it is compressed with ",
           number < kNames.size() ? std::string(kNames[number]) : concat("codec ", number),
           ", which is not supported; write it with snappy, zstd, gzip or none");
}

}  // namespace bev
