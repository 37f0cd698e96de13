// The rank's tensor memory. Blocks are reference counted; the allocator is deterministic: the same
// sequence of requests and releases gives the same addresses, so a step reuses the memory of the
// last.
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

// There is no memory left; the message has the table of tags.
class OutOfMemory : public Error {
 public:
  explicit OutOfMemory(std::string message);
};

// Where an arena gets its memory; 64-byte aligned.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual void* allocate(std::size_t bytes) = 0;  // throws Error when there is none
  virtual void release(void* address, std::size_t bytes) = 0;
};
std::unique_ptr<MemorySource> make_host_memory();

struct Block;

// Has the content of blocks that gave their memory away for a while.
class BlockKeeper {
 public:
  // Somebody wants to read a block that is away.
  virtual void bring_back(Block& block) = 0;
  // Nobody refers to the block any more; its memory, where it has some, is given away next.
  virtual void forget(Block& block) noexcept = 0;

 protected:
  ~BlockKeeper() = default;
};

// One allocation. Not thread safe: blocks stay with their rank.
struct Block {
  void* data = nullptr;  // null while it has no memory
  std::size_t bytes = 0;
  const char* tag = "";
  std::int32_t references = 0;
  Arena* arena = nullptr;
  Block* next_free = nullptr;
  std::int64_t elements = 0;
  std::int64_t number = 0;        // counts the arena's allocations
  BlockKeeper* keeper = nullptr;  // null: nobody, the block never goes
  bool away = false;              // the memory, if any, does not have the content
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
  // Where the content is now: a block that was away may come back to another place.
  void* data() const {
    if (block_->away) block_->keeper->bring_back(*block_);
    return block_->data;
  }

 private:
  Block* block_ = nullptr;
};

class Arena {
 public:
  // limit_bytes 0: whatever the source gives. It is asked for up to spare_bytes more than is needed
  // at once, so that few large pieces serve many requests.
  static constexpr std::size_t kSpareBytes = std::size_t{4} << 30;
  explicit Arena(std::unique_ptr<MemorySource> source, std::size_t limit_bytes = 0,
                 std::size_t spare_bytes = kSpareBytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // `tag` must be a literal. Running out throws OutOfMemory.
  BlockRef allocate(std::size_t bytes, const char* tag, View* view);
  // Gives a block's memory to others, and takes memory for it again. The block stays; its keeper
  // has seen to the content.
  void vacate(Block& block);
  void occupy(Block& block);
  // The number that the next block gets, and the blocks in use from a number on.
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
  std::size_t reserved() const { return reserved_; }  // taken from the source, never given back
  void reset_peak();
  // Bytes by tag, largest first: in use now, and at the moment of the peak.
  using TagTable = std::vector<std::pair<std::string, std::size_t>>;
  TagTable by_tag() const { return table_of(tags_); }
  TagTable peak_by_tag() const { return table_of(peak_tags_); }
  // From now on every change goes there too; null: to nobody.
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
  // nullptr where the source has less and not all of it is needed.
  std::byte* reserve(std::size_t bytes, bool needed);
  [[noreturn]] void fail_full(const std::string& what) const;
  void count(const char* tag, std::size_t bytes, bool add);
  using TagBytes = std::vector<std::pair<const char*, std::size_t>>;
  static TagTable table_of(const TagBytes& tags);

  std::unique_ptr<MemorySource> source_;
  std::size_t limit_ = 0, spare_ = 0, reserved_ = 0, in_use_ = 0, peak_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<Free> free_;  // by address; neighbours within a chunk are merged
  TagBytes tags_, peak_tags_;
  Trace* trace_ = nullptr;
  std::vector<std::unique_ptr<Block[]>> block_slabs_;
  Block* free_blocks_ = nullptr;
  std::int64_t next_number_ = 0;
};

}  // namespace bev
