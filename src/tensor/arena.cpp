#include "tensor/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>

#include "base/divide.h"
#include "base/trace.h"

namespace bev {

namespace {
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kChunkBytes = std::size_t{32} << 20;

class HostMemory : public MemorySource {
 public:
  void* allocate(std::size_t bytes) override {
    void* address =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BEV_CHECK(address != MAP_FAILED, ErrorKind::kDevice,
              "out of host memory: ", format_bytes(static_cast<double>(bytes)),
              " more were asked for");
    ::madvise(address, bytes, MADV_HUGEPAGE);
    return address;
  }
  void release(void* address, std::size_t bytes) override { ::munmap(address, bytes); }
};
}  // namespace

std::unique_ptr<MemorySource> make_host_memory() { return std::make_unique<HostMemory>(); }

OutOfMemory::OutOfMemory(std::string message) : Error(ErrorKind::kDevice, std::move(message)) {}

BlockRef::~BlockRef() {
  if (block_ && --block_->references == 0) block_->arena->release(block_);
}

Arena::Arena(std::unique_ptr<MemorySource> source, std::size_t limit_bytes, std::size_t spare_bytes)
    : source_(std::move(source)), limit_(limit_bytes), spare_(spare_bytes) {}

Arena::~Arena() {
  for (const Chunk& chunk : chunks_) source_->release(chunk.data, chunk.bytes);
}

BlockRef Arena::allocate(std::size_t bytes, const char* tag, View* view) {
  std::size_t rounded = std::max(round_up(bytes, kAlignment), kAlignment);
  if (free_blocks_ == nullptr) {
    block_slabs_.push_back(std::make_unique<Block[]>(kSlabBlocks));
    for (std::size_t i = 0; i < kSlabBlocks; ++i) {
      block_slabs_.back()[i].next_free = std::exchange(free_blocks_, &block_slabs_.back()[i]);
    }
  }
  std::byte* data = take_or_grow(rounded, tag);
  Block* block = free_blocks_;
  free_blocks_ = block->next_free;
  *block = Block{data, rounded, tag, 0, this, nullptr, view->numel(), next_number_++};
  view->data = data;
  return BlockRef(block);
}

std::byte* Arena::take_or_grow(std::size_t bytes, const char* tag) {
  std::byte* data = take(bytes);
  if (data == nullptr) {
    grow(bytes);
    data = take(bytes);
  }
  in_use_ += bytes;
  count(tag, bytes, true);
  if (in_use_ > peak_) reset_peak();
  return data;
}

void Arena::release(Block* block) {
  if (block->keeper != nullptr) block->keeper->forget(*block);
  if (block->data != nullptr) vacate(*block);
  block->next_free = std::exchange(free_blocks_, block);
}

void Arena::vacate(Block& block) {
  in_use_ -= block.bytes;
  count(block.tag, block.bytes, false);
  give_back(static_cast<std::byte*>(std::exchange(block.data, nullptr)), block.bytes);
}

void Arena::occupy(Block& block) { block.data = take_or_grow(block.bytes, block.tag); }

// Best fit; the lowest address on ties.
std::byte* Arena::take(std::size_t bytes) {
  Free* best = nullptr;
  for (Free& candidate : free_) {
    if (candidate.bytes >= bytes && (best == nullptr || candidate.bytes < best->bytes)) {
      best = &candidate;
    }
  }
  if (best == nullptr) return nullptr;
  std::byte* data = best->data;
  best->data += bytes;
  best->bytes -= bytes;
  if (best->bytes == 0) free_.erase(free_.begin() + (best - free_.data()));
  return data;
}

void Arena::give_back(std::byte* data, std::size_t bytes) {
  auto after = std::lower_bound(free_.begin(), free_.end(), data,
                                [](const Free& f, const std::byte* at) { return f.data < at; });
  auto chunk_starts_at = [&](const std::byte* at) {
    return std::any_of(chunks_.begin(), chunks_.end(),
                       [&](const Chunk& c) { return c.data == at; });
  };
  bool joins_after =
      after != free_.end() && data + bytes == after->data && !chunk_starts_at(after->data);
  bool joins_before = after != free_.begin() &&
                      std::prev(after)->data + std::prev(after)->bytes == data &&
                      !chunk_starts_at(data);
  if (joins_before && joins_after) {
    std::prev(after)->bytes += bytes + after->bytes;
    free_.erase(after);
  } else if (joins_before) {
    std::prev(after)->bytes += bytes;
  } else if (joins_after) {
    after->data = data;
    after->bytes += bytes;
  } else {
    free_.insert(after, Free{data, bytes});
  }
}

void Arena::grow(std::size_t bytes) {
  // Chunks grow with the bytes reserved, so that a few large ones serve large models; the excess is
  // bounded by spare_, because other users share the device.
  std::size_t chunk_bytes = std::max(bytes, std::min(reserved_ / 4, spare_));
  chunk_bytes = round_up(chunk_bytes, kChunkBytes);
  if (limit_ != 0 && reserved_ + chunk_bytes > limit_) chunk_bytes = bytes;
  if (limit_ != 0 && reserved_ + chunk_bytes > limit_) {
    fail_full(concat(format_bytes(static_cast<double>(bytes)),
                     " more do not fit into the limit of ",
                     format_bytes(static_cast<double>(limit_))));
  }
  std::byte* data = reserve(chunk_bytes, chunk_bytes == bytes);
  if (data == nullptr) {
    chunk_bytes = bytes;
    data = reserve(bytes, true);
  }
  chunks_.push_back({data, chunk_bytes});
  reserved_ += chunk_bytes;
  give_back(data, chunk_bytes);
}

std::byte* Arena::reserve(std::size_t bytes, bool needed) {
  try {
    return static_cast<std::byte*>(source_->allocate(bytes));
  } catch (const Error& error) {
    if (needed) fail_full(error.what());
    return nullptr;
  }
}

void Arena::fail_full(const std::string& what) const {
  std::string table;
  for (const auto& [tag, used] : by_tag()) {
    table += concat("\n  ", tag, ": ", format_bytes(static_cast<double>(used)));
  }
  throw OutOfMemory(concat("out of memory: ", what, "; in use by tag:", table));
}

void Arena::count(const char* tag, std::size_t bytes, bool add) {
  auto place = std::ranges::find(tags_, tag, &TagBytes::value_type::first);
  if (place == tags_.end()) place = tags_.insert(tags_.end(), {tag, 0});
  place->second = add ? place->second + bytes : place->second - bytes;
  if (trace_ != nullptr) trace_->memory(tag, place->second);
}

void Arena::reset_peak() {
  peak_ = in_use_;
  peak_tags_ = tags_;
}

void Arena::set_trace(Trace* trace) {
  trace_ = trace;
  if (trace_ == nullptr) return;
  for (const auto& [tag, used] : tags_) trace_->memory(tag, used);
}

Arena::TagTable Arena::table_of(const TagBytes& tags) {
  std::map<std::string, std::size_t> merged;
  for (const auto& [tag, used] : tags) merged[tag] += used;
  TagTable table(merged.begin(), merged.end());
  std::erase_if(table, [](const auto& entry) { return entry.second == 0; });
  std::stable_sort(table.begin(), table.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return table;
}

}  // namespace bev
