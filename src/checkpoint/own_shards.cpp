#include "checkpoint/own_shards.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"
#include "bridge/safetensors.h"
#include "checkpoint/checksum.h"

namespace bev {

namespace {

// "a, b and 7 more"
std::string some_names(const std::set<std::string>& names) {
  constexpr std::size_t kMost = 5;
  std::vector<std::string> first;
  for (const std::string& name : names) {
    if (first.size() < kMost) first.push_back(name);
  }
  std::string text = join(first, ", ");
  return names.size() > kMost ? concat(text, " and ", names.size() - kMost, " more") : text;
}

std::set<std::string> tensors_of(const ShardEntry& entry) {
  std::set<std::string> names;
  for (const std::string& piece : entry.pieces) names.insert(parse_piece_name(piece)->first);
  return names;
}

}  // namespace

// Memory-mapped shard whose blocks are verified on demand.
struct OwnShards::Shard {
  Shard(const std::string& folder, const ShardEntry& shard)
      : entry(shard), path(join_path(folder, shard.file)) {
    MappedFile file(path);
    bytes = file.bytes();
    BEV_CHECK(bytes.size() == entry.bytes, ErrorKind::kInput, path, ": has ", bytes.size(),
              " bytes, the manifest says ", entry.bytes,
              bytes.size() < entry.bytes ? ": truncated" : "");
    checked = std::vector<std::atomic<bool>>(entry.checksums.size());
    // The header is verified before it is parsed.
    std::uint64_t length = 0;
    BEV_CHECK(bytes.size() > sizeof length, ErrorKind::kInput, path, ": no safetensors file");
    check(0);
    std::memcpy(&length, bytes.data(), sizeof length);
    check(bytes.first(std::min(bytes.size() - sizeof length, length) + sizeof length));
    tensors = std::make_unique<SafetensorsFile>(std::move(file));
  }

  std::span<const std::byte> block(std::size_t index) const {
    std::size_t begin = index * kBlockBytes;
    return bytes.subspan(begin, std::min<std::size_t>(kBlockBytes, entry.bytes - begin));
  }
  bool intact(std::size_t index) const { return checksum(block(index)) == entry.checksums[index]; }
  // Tensors with bytes in a block; all of them if the header itself is corrupt.
  std::set<std::string> tensors_in(std::size_t index) const {
    std::set<std::string> names;
    const std::byte* begin = block(index).data();
    const std::byte* end = begin + block(index).size();
    for (const StoredTensor& tensor : tensors->tensors()) {
      const std::byte* data = tensor.bytes.data();
      if (data < end && data + tensor.bytes.size() > begin) {
        if (auto parsed = parse_piece_name(tensor.name)) names.insert(parsed->first);
      }
    }
    return names;
  }
  // Prefetches the next blocks from disk (MADV_WILLNEED).
  void read_ahead(std::size_t index) {
    constexpr std::size_t kAhead = 8;
    std::size_t begin = std::max(index, asked.load()),
                end = std::min(index + kAhead, checked.size());
    if (begin >= end) return;
    std::size_t bytes_end = std::min<std::size_t>(end * kBlockBytes, entry.bytes);
    auto* from = const_cast<std::byte*>(bytes.data()) + begin * kBlockBytes;  // not written
    ::madvise(from, bytes_end - begin * kBlockBytes, MADV_WILLNEED);
    asked = end;
  }
  void check(std::size_t index) {
    if (checked[index]) return;
    read_ahead(index);
    BEV_CHECK(intact(index), ErrorKind::kInput, path, ": corrupt: block ", index, " of ",
              checked.size(), " does not have the checksum of the manifest; in it lies ",
              tensors ? some_names(tensors_in(index))
                      : concat("the header, and so ", some_names(tensors_of(entry))));
    checked[index] = true;
  }
  void check(std::span<const std::byte> range) {
    if (range.empty()) return;
    auto begin = static_cast<std::size_t>(range.data() - bytes.data());
    for (std::size_t i = begin / kBlockBytes; i * kBlockBytes < begin + range.size(); ++i) check(i);
  }
  const ShardEntry& entry;
  std::string path;
  std::span<const std::byte> bytes;
  std::unique_ptr<SafetensorsFile> tensors;  // owns the mapping
  std::vector<std::atomic<bool>> checked;    // several threads may verify a block at once
  std::atomic<std::size_t> asked = 0;        // blocks before this one are prefetched
};

// Serialises the opening of shards.
struct OwnShards::Opening {
  std::mutex mutex;
};

OwnShards::OwnShards(std::string folder, const Manifest& manifest)
    : folder_(std::move(folder)), manifest_(manifest), opening_(std::make_unique<Opening>()) {
  shards_.resize(manifest_.shards.size());
}

OwnShards::~OwnShards() = default;

OwnShards::Shard& OwnShards::shard(std::size_t index, const std::string& tensor) {
  std::lock_guard lock(opening_->mutex);
  std::unique_ptr<Shard>& shard = shards_[index];
  if (shard) return *shard;
  try {
    shard = std::make_unique<Shard>(folder_, manifest_.shards[index]);
  } catch (const Error& error) {
    throw Error(concat("checkpoint: cannot read ", quote(tensor), ": "), error);
  }
  return *shard;
}

std::span<const std::byte> OwnShards::open(const Piece& piece, const std::string& tensor,
                                           Dtype dtype, std::int64_t) {
  Shard& from = shard(piece.file, tensor);
  TensorBytes stored = from.tensors->tensor(piece.key);
  BEV_CHECK(stored.dtype == dtype && stored.shape == piece.box.shape(), ErrorKind::kInput,
            from.path, ": ", quote(piece.key), " is ", name_of(stored.dtype), " ", stored.shape,
            ", the manifest says ", name_of(dtype));
  return stored.bytes;
}

void OwnShards::check(const Piece& piece, std::span<const std::byte> bytes) {
  shard(piece.file, piece.key).check(bytes);
}

std::vector<std::string> OwnShards::verify() {
  std::vector<std::string> problems;
  for (const ShardEntry& entry : manifest_.shards) {
    try {
      Shard shard(folder_, entry);
      for (std::size_t i = 0; i < entry.checksums.size(); ++i) {
        try {
          shard.check(i);
        } catch (const Error& error) {
          problems.push_back(error.what());
        }
      }
    } catch (const Error& error) {
      problems.push_back(concat(error.what(), "; it holds ", some_names(tensors_of(entry))));
    }
  }
  return problems;
}

}  // namespace bev
