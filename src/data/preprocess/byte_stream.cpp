#include "data/preprocess/byte_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace bev {

namespace {

constexpr std::size_t kBufferBytes = 1 << 18;
constexpr std::string_view kGzipMagic = "\x1f\x8b";
constexpr std::string_view kZstdMagic = "\x28\xb5\x2f\xfd";
constexpr std::string_view kZstdSkippableMagic = "\x2a\x4d\x18";  // follows a byte 0x50 to 0x5f

// Raw file behind our own buffer, so that the first bytes can be peeked.
class RawFile {
 public:
  RawFile(const std::string& path, std::int64_t begin) : path_(path), buffer_(kBufferBytes) {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) fail();
    await_writer();
    if (begin > 0 && ::lseek(descriptor_, begin, SEEK_SET) < 0) fail();
    position_ = begin;
  }
  ~RawFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  RawFile(const RawFile&) = delete;
  RawFile& operator=(const RawFile&) = delete;

  // Buffered bytes not yet taken; reads more if there are none. Empty at the end of the file.
  std::string_view available() {
    if (begin_ == end_) fill(1);
    return {buffer_.data() + begin_, end_ - begin_};
  }
  // The same with at least `count` bytes, unless the file ends before.
  std::string_view peek(std::size_t count) {
    if (end_ - begin_ < count) fill(count);
    return {buffer_.data() + begin_, end_ - begin_};
  }
  void take(std::size_t count) {
    begin_ += count;
    position_ += static_cast<std::int64_t>(count);
  }
  std::int64_t position() const { return position_; }
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void fail() const {
    int error = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    BEV_FAIL(ErrorKind::kInput, path_, ": cannot be read: ", std::strerror(error));
  }

  // A FIFO without a writer reads as end of file, one that is open and empty does not; so this
  // waits for a writer.
  void await_writer() {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) fail();
    pollfd pipe{descriptor_, POLLIN, 0};
    constexpr int kMostSeconds = 60, kPerSecond = 10;
    for (int waited = 0; S_ISFIFO(status.st_mode); ++waited) {
      ssize_t got = ::read(descriptor_, buffer_.data(), buffer_.size());
      if (got < 0 && errno != EAGAIN) fail();
      if (got > 0) end_ = static_cast<std::size_t>(got);
      if (got != 0 || ::poll(&pipe, 1, 1000 / kPerSecond) != 0) break;
      if (waited == kPerSecond) log_info(concat(path_, ": waiting for someone to open this pipe"));
      if (waited < kMostSeconds * kPerSecond) continue;
      ::close(std::exchange(descriptor_, -1));
      BEV_FAIL(ErrorKind::kInput, path_, ": nobody has opened this pipe for writing in ",
               kMostSeconds, " seconds; start what writes to it, or give a file");
    }
    if (::fcntl(descriptor_, F_SETFL, 0) != 0) fail();
  }

  void fill(std::size_t count) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    while (end_ < count) {
      ssize_t got = ::read(descriptor_, buffer_.data() + end_, buffer_.size() - end_);
      if (got < 0 && errno == EINTR) continue;
      BEV_CHECK(got >= 0, ErrorKind::kInput, path_, ": cannot be read: ", std::strerror(errno));
      if (got == 0) return;
      end_ += static_cast<std::size_t>(got);
    }
  }

  std::string path_;
  int descriptor_ = -1;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  std::int64_t position_ = 0;
};

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(std::unique_ptr<RawFile> file) : file_(std::move(file)) {}

  std::size_t read(std::span<char> buffer) override {
    std::size_t done = 0;
    while (done < buffer.size()) {
      std::string_view bytes = file_->available().substr(0, buffer.size() - done);
      if (bytes.empty()) break;
      std::memcpy(buffer.data() + done, bytes.data(), bytes.size());
      file_->take(bytes.size());
      done += bytes.size();
    }
    return done;
  }
  std::int64_t position() const override { return file_->position(); }

 private:
  std::unique_ptr<RawFile> file_;
};

[[noreturn]] void fail_archive(const RawFile& file, const char* kind, std::string_view what) {
  BEV_FAIL(ErrorKind::kInput, file.path(), ": the ", kind, " data is broken at byte ",
           file.position(), " of the file: ", what, "; copy or compress the file again");
}

constexpr std::string_view kCutArchive = "the file ends too early, it was cut";

// Concatenated members (`cat a.gz b.gz`) form one stream.
class GzipStream : public ByteStream {
 public:
  explicit GzipStream(std::unique_ptr<RawFile> file) : file_(std::move(file)) {
    constexpr int kGzipOnly = 16;
    int status = inflateInit2(&state_, MAX_WBITS + kGzipOnly);
    BEV_CHECK(status == Z_OK, ErrorKind::kInternal, "zlib cannot start: ", status);
  }
  ~GzipStream() override { inflateEnd(&state_); }

  std::size_t read(std::span<char> buffer) override {
    state_.next_out = reinterpret_cast<Bytef*>(buffer.data());
    state_.avail_out = static_cast<uInt>(buffer.size());
    while (state_.avail_out > 0 && (inside_ || start_member())) step();
    return buffer.size() - state_.avail_out;
  }
  std::int64_t position() const override { return file_->position(); }

 private:
  // Zeros after a member are padding, as left by tapes and block devices.
  bool start_member() {
    for (std::string_view bytes = file_->available(); !bytes.empty(); bytes = file_->available()) {
      std::size_t zeros = first_ ? 0 : std::min(bytes.find_first_not_of('\0'), bytes.size());
      file_->take(zeros);
      if (zeros < bytes.size()) {
        inflateReset(&state_);
        first_ = false;
        return inside_ = true;
      }
    }
    return false;
  }

  void step() {
    std::string_view bytes = file_->available();
    if (bytes.empty()) fail_archive(*file_, "gzip", kCutArchive);
    state_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    state_.avail_in = static_cast<uInt>(bytes.size());
    int status = inflate(&state_, Z_NO_FLUSH);
    file_->take(bytes.size() - state_.avail_in);
    if (status == Z_STREAM_END) {
      inside_ = false;
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      fail_archive(*file_, "gzip", state_.msg ? state_.msg : zError(status));
    }
  }

  std::unique_ptr<RawFile> file_;
  z_stream state_{};
  bool inside_ = false, first_ = true;
};

// Concatenated frames form one stream.
class ZstdStream : public ByteStream {
 public:
  explicit ZstdStream(std::unique_ptr<RawFile> file)
      : file_(std::move(file)), state_(ZSTD_createDStream()) {
    BEV_CHECK(state_ != nullptr, ErrorKind::kInternal, "zstd cannot start");
  }
  ~ZstdStream() override { ZSTD_freeDStream(state_); }

  std::size_t read(std::span<char> buffer) override {
    ZSTD_outBuffer out{buffer.data(), buffer.size(), 0};
    while (out.pos < out.size) {
      std::string_view bytes = file_->available();
      ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
      std::size_t before = out.pos;
      // Called without input too: decoded data may still wait for space in the output.
      std::size_t status = ZSTD_decompressStream(state_, &out, &in);
      if (ZSTD_isError(status)) fail_archive(*file_, "zstd", ZSTD_getErrorName(status));
      file_->take(in.pos);
      if (in.pos > 0 || out.pos > before) inside_ = status != 0;
      if (!bytes.empty() || out.pos > before) continue;
      if (inside_) fail_archive(*file_, "zstd", kCutArchive);
      break;
    }
    return out.pos;
  }
  std::int64_t position() const override { return file_->position(); }

 private:
  std::unique_ptr<RawFile> file_;
  ZSTD_DStream* state_;
  bool inside_ = false;
};

bool is_zstd(std::string_view bytes) {
  return bytes.starts_with(kZstdMagic) || (bytes.size() >= 4 && (bytes[0] & 0xf0) == 0x50 &&
                                           bytes.substr(1).starts_with(kZstdSkippableMagic));
}

}  // namespace

std::unique_ptr<ByteStream> open_byte_stream(const std::string& path, std::int64_t begin) {
  auto file = std::make_unique<RawFile>(path, begin);
  if (begin > 0) return std::make_unique<PlainStream>(std::move(file));
  std::string_view first = file->peek(kZstdMagic.size());
  if (first.starts_with(kGzipMagic)) return std::make_unique<GzipStream>(std::move(file));
  if (is_zstd(first)) return std::make_unique<ZstdStream>(std::move(file));
  bool archive = path.ends_with(".gz") || path.ends_with(".zst");
  BEV_CHECK(!archive || first.size() >= kZstdMagic.size(), ErrorKind::kInput, path, ": has ",
            first.size(), " bytes, which is no archive: ", kCutArchive);
  return std::make_unique<PlainStream>(std::move(file));
}

bool is_compressed(const std::string& path) {
  RawFile file(path, 0);
  std::string_view first = file.peek(kZstdMagic.size());
  return first.starts_with(kGzipMagic) || is_zstd(first);
}

}  // namespace bev
