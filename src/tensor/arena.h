// Caching allocator for a rank's tensors. Blocks are reference counted. It is deterministic: the
// same sequence of allocations and frees gives the same addresses, so every step reuses the memory
// of the previous one (CUDA graphs rely on it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tensor/view.h"

namespace bev {

class Arena;
class Trace;

// Out of memory; the message contains the table of bytes by tag.
class OutOfMemory : public Error {
 public:
  explicit OutOfMemory(std::string message);
};

// Where an arena gets its memory (host, pinned or device); 64-byte aligned.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual void* allocate(std::size_t bytes) = 0;  // throws Error if there is not enough
  virtual void release(void* address, std::size_t bytes) = 0;
};
std::unique_ptr<MemorySource> make_host_memory();

struct Block;

// Holds the contents of blocks whose memory was released temporarily (activation offload).
class BlockKeeper {
 public:
  // Called when the data of an offloaded block is accessed; restores memory and content.
  virtual void bring_back(Block& block) = 0;
  // Called when the last reference is dropped, before the arena frees the block's memory (if any).
  virtual void forget(Block& block) noexcept = 0;

 protected:
  ~BlockKeeper() = default;
};

// One allocation. Not thread safe: a block belongs to its rank's thread.
struct Block {
  void* data = nullptr;  // null while the block has no memory
  std::size_t bytes = 0;
  const char* tag = "";
  std::int32_t references = 0;
  Arena* arena = nullptr;
  Block* next_free = nullptr;
  std::int64_t elements = 0;
  std::int64_t number = 0;        // sequence number of the allocation in its arena
  BlockKeeper* keeper = nullptr;  // null: the block is never offloaded
  bool away = false;              // the content is not in `data` (offloaded, or on its way back)
};

class BlockRef {
 public:
  BlockRef() = default;
  explicit BlockRef(Block* block) : block_(block) {
    if (block_) ++block_->references;
  }
  BlockRef(const BlockRef& other) : BlockRef(other.block_) {}
  BlockRef(BlockRef&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~BlockRef();
  bool unique() const { return block_ && block_->references == 1; }
  explicit operator bool() const { return block_ != nullptr; }
  Block* get() const { return block_; }
  // Current address of the content; restores an offloaded block first, possibly at another address.
  void* data() const {
    if (block_->away) block_->keeper->bring_back(*block_);
    return block_->data;
  }

 private:
  Block* block_ = nullptr;
};

class Arena {
 public:
  // limit_bytes 0 means no limit. The arena asks the source for up to spare_bytes more than a
  // request needs, so that a few large chunks serve many requests.
  static constexpr std::size_t kSpareBytes = std::size_t{4} << 30;
  explicit Arena(std::unique_ptr<MemorySource> source, std::size_t limit_bytes = 0,
                 std::size_t spare_bytes = kSpareBytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // `tag` must be a literal. Throws OutOfMemory.
  BlockRef allocate(std::size_t bytes, const char* tag, View* view);
  // vacate frees the memory of a live block, occupy allocates memory for it again; the block's
  // keeper is responsible for the content.
  void vacate(Block& block);
  void occupy(Block& block);
  // Sequence number of the next block, and iteration over the live blocks from a given number on.
  std::int64_t next_number() const { return next_number_; }
  template <class Visit>
  void visit_since(std::int64_t number, const Visit& visit) {
    for (const auto& slab : block_slabs_) {
      for (std::size_t i = 0; i < kSlabBlocks; ++i) {
        Block& block = slab[i];
        if (block.references > 0 && block.number >= number) visit(block);
      }
    }
  }

  std::size_t in_use() const { return in_use_; }
  std::size_t peak() const { return peak_; }
  std::size_t reserved() const { return reserved_; }  // taken from the source, never returned
  void reset_peak();
  // Bytes by tag, largest first: now, and at the time of the peak.
  using TagTable = std::vector<std::pair<std::string, std::size_t>>;
  TagTable by_tag() const { return table_of(tags_); }
  TagTable peak_by_tag() const { return table_of(peak_tags_); }
  // Reports every change to the trace from now on; null: to none.
  void set_trace(Trace* trace);

 private:
  friend class BlockRef;
  struct Free {
    std::byte* data;
    std::size_t bytes;
  };
  struct Chunk {
    std::byte* data;
    std::size_t bytes;
  };
  static constexpr std::size_t kSlabBlocks = 256;
  void release(Block* block);
  std::byte* take_or_grow(std::size_t bytes, const char* tag);
  std::byte* take(std::size_t bytes);
  void give_back(std::byte* data, std::size_t bytes);
  void grow(std::size_t bytes);
  // Returns nullptr if the source does not have that much and `needed` is false.
  std::byte* reserve(std::size_t bytes, bool needed);
  [[noreturn]] void fail_full(const std::string& what) const;
  void count(const char* tag, std::size_t bytes, bool add);
  using TagBytes = std::vector<std::pair<const char*, std::size_t>>;
  static TagTable table_of(const TagBytes& tags);

  std::unique_ptr<MemorySource> source_;
  std::size_t limit_ = 0, spare_ = 0, reserved_ = 0, in_use_ = 0, peak_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<Free> free_;  // sorted by address; adjacent entries of a chunk are merged
  TagBytes tags_, peak_tags_;
  Trace* trace_ = nullptr;
  std::vector<std::unique_ptr<Block[]>> block_slabs_;
  Block* free_blocks_ = nullptr;
  std::int64_t next_number_ = 0;
};

}  // namespace bev
