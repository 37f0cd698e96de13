// Zip archives as torch.save writes them: entries are stored without compression, so that they are
// read where they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

struct ZipEntry {
  std::span<const std::byte> bytes;
  std::uint32_t checksum = 0;  // CRC-32
};

class ZipArchive {
 public:
  // Throws Error(kInput) that begins with `where` if the bytes are no such archive, are truncated,
  // or have compressed entries. The bytes must outlive it.
  ZipArchive(std::span<const std::byte> bytes, const std::string& where);

  const std::map<std::string, ZipEntry, std::less<>>& entries() const { return entries_; }
  // nullptr if there is none.
  const ZipEntry* find(std::string_view name) const;

 private:
  std::map<std::string, ZipEntry, std::less<>> entries_;
};

// Whether the entry's bytes have its checksum.
bool intact(const ZipEntry& entry);

// Writes an archive of stored entries into memory or a file piece by piece: data are aligned to 64
// bytes by padding in their headers, as PyTorch aligns them.
class ZipWriter {
 public:
  // The header of an entry, after which its `bytes` bytes follow.
  std::string begin_entry(std::string_view name, std::uint64_t bytes, std::uint32_t checksum);
  // What ends the archive.
  std::string end() const;

 private:
  struct Written {
    std::string name;
    std::uint64_t at = 0, bytes = 0;
    std::uint32_t checksum = 0;
  };
  std::vector<Written> entries_;
  std::uint64_t at_ = 0;
};

// CRC-32 of bytes that follow others, whose CRC-32 is `before` (0: none).
std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace bev
