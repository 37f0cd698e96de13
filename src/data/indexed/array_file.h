// Cached index arrays: in memory, or in a memory-mapped index file shared by processes and runs.
// The file name contains a hash of the inputs, so a cache file is never stale.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"
#include "data/indexed/packed_array.h"

namespace bev {

class ArrayFile {
 public:
  static constexpr std::uint64_t kVersion = 2;  // format version; part of every key
  static constexpr std::size_t kMostArrays = 4;
  static constexpr std::int64_t kMostWidth = 16;
  struct Shape {
    std::int64_t count = 0, width = 0;  // number of entries, bytes per entry
  };

  // Allocates arrays in memory; the caller fills them.
  explicit ArrayFile(std::span<const Shape> arrays);
  // nullopt unless the file is complete and was saved with this key.
  static std::optional<ArrayFile> load(const std::string& path, std::uint64_t key);
  // Any number of processes may save at the same time.
  void save(const std::string& path, std::uint64_t key) const;

  const Shape& shape(std::size_t array) const { return shapes_[array]; }
  template <class T>
  std::span<T> fill(std::size_t array) {
    return {reinterpret_cast<T*>(memory_.get() + places_[array]),
            static_cast<std::size_t>(shapes_[array].count)};
  }
  template <class T>
  PackedArray<T> array(std::size_t array) const {
    return {bytes_.data() + places_[array], static_cast<std::size_t>(shapes_[array].count)};
  }

 private:
  ArrayFile() = default;
  void place_arrays();

  std::array<Shape, kMostArrays> shapes_{};
  std::array<std::size_t, kMostArrays + 1> places_{};  // offsets (multiples of 8 bytes) and the end
  std::optional<MappedFile> file_;
  std::unique_ptr<std::byte[]> memory_;  // used if there is no file
  std::span<const std::byte> bytes_;     // everything after the header
};

// "KIND-KEY.bin".
std::string array_file_name(std::string_view kind, std::uint64_t key);

// Saves the arrays and maps the file, whose pages all processes share.
ArrayFile share_arrays(ArrayFile made, const std::string& path, std::uint64_t key);

// Loads the arrays from the folder's cache file; makes and saves them first if it is missing or
// corrupt. Without a folder they are only made in memory.
template <class Make>
ArrayFile cached_arrays(const std::string& folder, std::string_view kind, std::uint64_t key,
                        const Make& make) {
  if (folder.empty()) return make();
  std::string path = join_path(folder, array_file_name(kind, key));
  if (std::optional<ArrayFile> found = ArrayFile::load(path, key)) return std::move(*found);
  return share_arrays(make(), path, key);
}

}  // namespace bev
