#include "train/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstddef>
#include <utility>

#include "base/clock.h"
#include "base/file.h"
#include "base/protobuf.h"
#include "base/text.h"

namespace bev {

namespace {
constexpr std::size_t kFlushBytes = 1 << 16;

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0x82F63B78u : 0u);
    table[i] = value;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

template <class Unsigned>
void put_fixed(std::string& out, Unsigned value) {
  for (std::size_t i = 0; i < sizeof value; ++i) {
    out.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
  }
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void put_key(std::string& out, unsigned field, ProtobufWire wire) {
  put_varint(out, field << 3 | static_cast<unsigned>(wire));
}
void put_bytes(std::string& out, unsigned field, std::string_view bytes) {
  put_key(out, field, ProtobufWire::kBytes);
  put_varint(out, bytes.size());
  out.append(bytes);
}

// Event: wall_time = 1, step = 2, file_version = 3, summary = 5.
std::string start_event(std::int64_t step) {
  std::string event;
  put_key(event, 1, ProtobufWire::kFixed64);
  put_fixed(event, std::bit_cast<std::uint64_t>(static_cast<double>(unix_microseconds()) * 1e-6));
  put_key(event, 2, ProtobufWire::kVarint);
  put_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

std::string free_path(const std::string& folder) {
  make_directories(folder);
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  for (int n = 0;; ++n) {
    std::string name = fmt::format("events.out.tfevents.{:010d}.{}.{}.{}",
                                   unix_microseconds() / 1'000'000, host, ::getpid(), n);
    std::string path = join_path(folder, name);
    if (!path_exists(path)) return path;
  }
}

class EventFile final : public ReportFile {
 public:
  explicit EventFile(const std::string& folder)
      : ReportFile(concat("--tensorboard-dir ", folder)), folder_(folder) {}

 private:
  std::unique_ptr<AppendFile> open() override {
    return std::make_unique<AppendFile>(free_path(folder_), OpenMode::kExclusive);
  }

  std::string folder_;
};
}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (char c : bytes) crc = kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

TensorBoardWriter::TensorBoardWriter(const std::string& folder)
    : file_(std::make_unique<EventFile>(folder)) {
  std::string event = start_event(0);
  put_bytes(event, 3, "brain.Event:2");
  add_record(event);
  flush();
}

TensorBoardWriter::~TensorBoardWriter() {
  flush();
  file_->finish();
}

void TensorBoardWriter::scalar(std::string_view tag, std::int64_t step, double value) {
  std::string point;  // Summary.Value: tag = 1, simple_value = 2
  put_bytes(point, 1, tag);
  put_key(point, 2, ProtobufWire::kFixed32);
  put_fixed(point, std::bit_cast<std::uint32_t>(static_cast<float>(value)));
  std::string summary;  // Summary: value = 1
  put_bytes(summary, 1, point);
  std::string event = start_event(step);
  put_bytes(event, 5, summary);
  add_record(event);
  if (pending_.size() >= kFlushBytes) flush();
}

// TFRecord: length, its checksum, the bytes, their checksum.
void TensorBoardWriter::add_record(std::string_view event) {
  std::string length;
  put_fixed(length, static_cast<std::uint64_t>(event.size()));
  pending_.append(length);
  put_fixed(pending_, masked_crc32c(length));
  pending_.append(event);
  put_fixed(pending_, masked_crc32c(event));
}

void TensorBoardWriter::flush() {
  if (!pending_.empty()) file_->write(std::exchange(pending_, {}));
}

}  // namespace bev
