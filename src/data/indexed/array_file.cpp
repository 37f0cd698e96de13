#include "data/indexed/array_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/divide.h"
#include "base/error.h"
#include "base/log.h"
#include "data/indexed/content_hash.h"
#include "data/indexed/staged_file.h"

namespace bev {

namespace {

struct Header {
  std::array<char, 8> magic{'B', 'E', 'V', 'I', 'N', 'D', 'E', 'X'};
  std::uint64_t version = ArrayFile::kVersion;
  std::uint64_t key = 0;       // hash of the inputs of the arrays
  std::uint64_t checksum = 0;  // hash of shapes and arrays
  std::array<ArrayFile::Shape, ArrayFile::kMostArrays> shapes{};
};

std::uint64_t checksum_of(const Header& header, std::span<const std::byte> arrays) {
  return hash_bytes(arrays, hash_bytes(std::as_bytes(std::span(header.shapes)), header.key));
}

}  // namespace

void ArrayFile::place_arrays() {
  for (std::size_t i = 0; i < kMostArrays; ++i) {
    auto bytes = static_cast<std::size_t>(shapes_[i].count * shapes_[i].width);
    places_[i + 1] = places_[i] + round_up(bytes, 8);
  }
}

ArrayFile::ArrayFile(std::span<const Shape> arrays) {
  BEV_CHECK(arrays.size() <= kMostArrays, ErrorKind::kInternal, "array file: ", arrays.size(),
            " arrays");
  std::ranges::copy(arrays, shapes_.begin());
  place_arrays();
  memory_ = std::make_unique_for_overwrite<std::byte[]>(places_.back());
  bytes_ = {memory_.get(), places_.back()};
  for (std::size_t i = 0; i < kMostArrays; ++i) {
    if (shapes_[i].count == 0) continue;
    std::memset(memory_.get() + places_[i + 1] - 8, 0, 8);  // zeroes the padding, if any
  }
}

std::optional<ArrayFile> ArrayFile::load(const std::string& path, std::uint64_t key) {
  if (!path_exists(path)) return std::nullopt;
  ArrayFile out;
  out.file_.emplace(path);
  std::span<const std::byte> all = out.file_->bytes();
  const Header expected;
  Header header;
  if (all.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, all.data(), sizeof header);
  out.bytes_ = all.subspan(sizeof header);
  // These bounds prevent integer overflow of the sizes.
  bool good = header.magic == expected.magic && header.version == expected.version &&
              header.key == key && std::ranges::all_of(header.shapes, [&](const Shape& shape) {
                return shape.count >= 0 && shape.width >= 0 && shape.width <= kMostWidth &&
                       static_cast<std::size_t>(shape.count) <= all.size();
              });
  if (!good) return std::nullopt;
  out.shapes_ = header.shapes;
  out.place_arrays();
  if (out.places_.back() != out.bytes_.size()) return std::nullopt;
  if (checksum_of(header, out.bytes_) != header.checksum) return std::nullopt;
  return out;
}

void ArrayFile::save(const std::string& path, std::uint64_t key) const {
  Header header;
  header.key = key;
  header.shapes = shapes_;
  header.checksum = checksum_of(header, bytes_);
  StagedFile out(path);
  out.write_value(header);
  out.write(bytes_);
  out.commit();
}

std::string array_file_name(std::string_view kind, std::uint64_t key) {
  return fmt::format("{}-{:016x}.bin", kind, key);
}

ArrayFile share_arrays(ArrayFile made, const std::string& path, std::uint64_t key) {
  if (path_exists(path)) log_warning(concat(path, ": is damaged; it is made again"));
  make_directories(parent_path(path));
  made.save(path, key);
  std::optional<ArrayFile> saved = ArrayFile::load(path, key);
  return saved ? std::move(*saved) : std::move(made);
}

}  // namespace bev
