#include "bridge/torch/zip_archive.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/json_check.h"

namespace bev {

namespace {

constexpr std::uint32_t kLocalMagic = 0x04034b50, kCentralMagic = 0x02014b50,
                        kEndMagic = 0x06054b50, kEnd64Magic = 0x06064b50,
                        kLocator64Magic = 0x07064b50;
constexpr std::size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                      kLocator64Bytes = 20, kLongestComment = 65535;
constexpr std::uint64_t kIn64 = 0xffffffff;  // the value is in the zip64 field

// Little-endian numbers at any place of the archive.
class ZipBytes {
 public:
  ZipBytes(std::span<const std::byte> bytes, const std::string& where)
      : bytes_(bytes), where_(where) {}

  [[noreturn]] void fail(std::string_view what) const {
    BEV_FAIL(ErrorKind::kInput, where_, ": ", what);
  }
  std::span<const std::byte> at(std::uint64_t begin, std::uint64_t count) const {
    if (begin > bytes_.size() || count > bytes_.size() - begin) fail("zip archive is truncated");
    return bytes_.subspan(begin, count);
  }
  std::uint64_t number(std::uint64_t begin, std::size_t count) const {
    std::uint64_t value = 0;
    std::memcpy(&value, at(begin, count).data(), count);
    return value;
  }
  std::string_view text(std::uint64_t begin, std::uint64_t count) const {
    return {reinterpret_cast<const char*>(at(begin, count).data()), count};
  }
  std::size_t size() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  const std::string& where_;
};

struct Directory {
  std::uint64_t at = 0, bytes = 0, entries = 0;
};

Directory find_directory(const ZipBytes& zip) {
  if (zip.size() < kEndBytes) zip.fail("is no zip archive, as torch.save writes since 1.6");
  std::size_t end = zip.size() - kEndBytes;
  std::size_t lowest = end > kLongestComment ? end - kLongestComment : 0;
  while (zip.number(end, 4) != kEndMagic) {
    if (end == lowest) {
      zip.fail(
          "is no whole zip archive, as torch.save writes since 1.6: truncated, or another file");
    }
    --end;
  }
  Directory directory{zip.number(end + 16, 4), zip.number(end + 12, 4), zip.number(end + 10, 2)};
  bool small = directory.at != kIn64 && directory.bytes != kIn64 && directory.entries != 0xffff;
  if (small) return directory;
  if (end < kLocator64Bytes || zip.number(end - kLocator64Bytes, 4) != kLocator64Magic) {
    zip.fail("zip archive: has no zip64 locator");
  }
  std::uint64_t end64 = zip.number(end - kLocator64Bytes + 8, 8);
  if (zip.at(end64, kEnd64Bytes).empty() || zip.number(end64, 4) != kEnd64Magic) {
    zip.fail("zip archive: its zip64 end is not where it says");
  }
  return {zip.number(end64 + 48, 8), zip.number(end64 + 40, 8), zip.number(end64 + 32, 8)};
}

// Sizes and place of an entry; those beyond 32 bits are in the zip64 field of `extra`.
struct Place {
  std::uint64_t stored = 0, bytes = 0, at = 0;
};

void read_zip64(const ZipBytes& zip, std::uint64_t extra, std::uint64_t extra_bytes, Place& place) {
  constexpr std::uint64_t kZip64Field = 1;
  std::uint64_t end = extra + extra_bytes;
  while (extra + 4 <= end) {
    std::uint64_t kind = zip.number(extra, 2), bytes = zip.number(extra + 2, 2);
    std::uint64_t at = extra + 4;
    extra = at + bytes;
    if (kind != kZip64Field || extra > end) continue;
    for (std::uint64_t* value : {&place.bytes, &place.stored, &place.at}) {
      if (*value != kIn64) continue;
      if (at + 8 > extra) zip.fail("zip archive: a zip64 field is too short");
      *value = zip.number(at, 8);
      at += 8;
    }
  }
}

}  // namespace

ZipArchive::ZipArchive(std::span<const std::byte> bytes, const std::string& where) {
  ZipBytes zip(bytes, where);
  Directory directory = find_directory(zip);
  std::uint64_t at = directory.at;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    if (zip.number(at, 4) != kCentralMagic) zip.fail("zip archive: its directory is damaged");
    std::uint64_t method = zip.number(at + 10, 2), name_bytes = zip.number(at + 28, 2),
                  extra_bytes = zip.number(at + 30, 2), comment_bytes = zip.number(at + 32, 2);
    Place place{zip.number(at + 20, 4), zip.number(at + 24, 4), zip.number(at + 42, 4)};
    std::string name(zip.text(at + kCentralBytes, name_bytes));
    read_zip64(zip, at + kCentralBytes + name_bytes, extra_bytes, place);
    if (method != 0 || place.stored != place.bytes) {
      zip.fail(concat("zip archive: ", quote(name), " is compressed, which torch.save never does"));
    }
    if (zip.number(place.at, 4) != kLocalMagic) {
      zip.fail(concat("zip archive: ", quote(name), " is not where the directory says"));
    }
    std::uint64_t data =
        place.at + kLocalBytes + zip.number(place.at + 26, 2) + zip.number(place.at + 28, 2);
    auto checksum = static_cast<std::uint32_t>(zip.number(at + 16, 4));
    bool added = entries_.try_emplace(name, ZipEntry{zip.at(data, place.bytes), checksum}).second;
    if (!added) zip.fail(concat("zip archive: has ", quote(name), " twice"));
    at += kCentralBytes + name_bytes + extra_bytes + comment_bytes;
  }
}

const ZipEntry* ZipArchive::find(std::string_view name) const {
  auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

bool intact(const ZipEntry& entry) { return crc32_of(entry.bytes) == entry.checksum; }

std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  auto sum = static_cast<uLong>(before);
  while (!bytes.empty()) {
    std::size_t count = std::min(bytes.size(), kMost);
    sum = ::crc32(sum, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(count));
    bytes = bytes.subspan(count);
  }
  return static_cast<std::uint32_t>(sum);
}

namespace {

void put(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

// Version to extract with zip64, flag of UTF-8 names.
constexpr std::uint64_t kZip64Version = 45, kUtf8Names = 0x800;
constexpr std::uint64_t kDate = 0x21;  // 1980-01-01, the first that the format has

// Fields that local and central headers share.
void put_common(std::string& out, std::uint32_t checksum, std::string_view name,
                std::size_t extra) {
  put(out, kZip64Version, 2);
  put(out, kUtf8Names, 2);
  put(out, 0, 2);  // stored
  put(out, 0, 2);
  put(out, kDate, 2);
  put(out, checksum, 4);
  put(out, kIn64, 4);
  put(out, kIn64, 4);
  put(out, name.size(), 2);
  put(out, extra, 2);
}

}  // namespace

std::string ZipWriter::begin_entry(std::string_view name, std::uint64_t bytes,
                                   std::uint32_t checksum) {
  constexpr std::size_t kAlignment = 64, kSizes = 20, kPadHeader = 4;
  std::size_t before = at_ + kLocalBytes + name.size() + kSizes + kPadHeader;
  std::size_t padding = (kAlignment - before % kAlignment) % kAlignment;
  std::string out;
  put(out, kLocalMagic, 4);
  put_common(out, checksum, name, kSizes + kPadHeader + padding);
  out += name;
  put(out, 1, 2);  // zip64 field: both sizes
  put(out, 16, 2);
  put(out, bytes, 8);
  put(out, bytes, 8);
  out += "FB";  // PyTorch's field of padding
  put(out, padding, 2);
  out.append(padding, 'Z');
  entries_.push_back({std::string(name), at_, bytes, checksum});
  at_ += out.size() + bytes;
  return out;
}

std::string ZipWriter::end() const {
  std::string out;
  for (const Written& entry : entries_) {
    constexpr std::size_t kFields = 28;
    put(out, kCentralMagic, 4);
    put(out, kZip64Version, 2);
    put_common(out, entry.checksum, entry.name, kFields);
    out.append(10, char{});  // no comment, disk, attributes
    put(out, kIn64, 4);
    out += entry.name;
    put(out, 1, 2);
    put(out, kFields - 4, 2);
    put(out, entry.bytes, 8);
    put(out, entry.bytes, 8);
    put(out, entry.at, 8);
  }
  std::uint64_t directory = out.size(), end64 = at_ + directory, count = entries_.size();
  put(out, kEnd64Magic, 4);
  put(out, kEnd64Bytes - 12, 8);
  put(out, kZip64Version, 2);
  put(out, kZip64Version, 2);
  put(out, 0, 8);  // disks
  put(out, count, 8);
  put(out, count, 8);
  put(out, directory, 8);
  put(out, at_, 8);
  put(out, kLocator64Magic, 4);
  put(out, 0, 4);
  put(out, end64, 8);
  put(out, 1, 4);
  put(out, kEndMagic, 4);
  put(out, 0, 4);
  put(out, 0xffff, 2);
  put(out, 0xffff, 2);
  put(out, kIn64, 4);
  put(out, kIn64, 4);
  put(out, 0, 2);
  return out;
}

}  // namespace bev
