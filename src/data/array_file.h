// Arrays that take long to make: in memory, or in a file that processes and runs share, which is
// named by a hash of what they were made from and so is never out of date.
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
#include "data/packed_array.h"

namespace bev {

class ArrayFile {
 public:
  static constexpr std::uint64_t kVersion = 2;  // of the format: part of every key
  static constexpr std::size_t kMostArrays = 4;
  static constexpr std::int64_t kMostWidth = 16;
  struct Shape {
    std::int64_t count = 0, width = 0;  // entries, and bytes of each
  };

  // In memory, yet to be filled.
  explicit ArrayFile(std::span<const Shape> arrays);
  // Empty unless the file is whole and was saved with this key.
  static std::optional<ArrayFile> load(const std::string& path, std::uint64_t key);
  // Any number of processes may do so at once.
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
  std::array<std::size_t, kMostArrays + 1> places_{};  // from multiples of eight bytes, and the end
  std::optional<MappedFile> file_;
  std::unique_ptr<std::byte[]> memory_;  // instead of it
  std::span<const std::byte> bytes_;     // what follows the header
};

// "KIND-KEY.bin".
std::string array_file_name(std::string_view kind, std::uint64_t key);

// Saves and maps them: the file's pages are shared by all processes, those in memory are not.
ArrayFile share_arrays(ArrayFile made, const std::string& path, std::uint64_t key);

// Those of the folder's file; made and put there first when it is missing or damaged. Without a
// folder they are only made.
template <class Make>
ArrayFile cached_arrays(const std::string& folder, std::string_view kind, std::uint64_t key,
                        const Make& make) {
  if (folder.empty()) return make();
  std::string path = join_path(folder, array_file_name(kind, key));
  if (std::optional<ArrayFile> found = ArrayFile::load(path, key)) return std::move(*found);
  return share_arrays(make(), path, key);
}

}  // namespace bev
