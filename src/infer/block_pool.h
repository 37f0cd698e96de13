// The paged memory of sequences: blocks of block_tokens rows (keys and values, or latents) that
// sequences share by reference counts, a cache of full blocks by content (prefix cache), and slots
// for what a sequence has once (recurrent state, token counts). Only the accounting: the rows
// themselves are tensors of the model runner.
//
// Invariant: free + cached + used == total, where a used block has references and a cached one has
// none but can be found by its content. Block 0 is the null block, which padding writes to.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/divide.h"

namespace bev {

using BlockId = std::int32_t;
inline constexpr BlockId kNullBlock = 0;

// What besides the tokens makes equal prefixes equal: sequences with another salt or adapter never
// share cached blocks.
struct CacheKey {
  std::string salt;
  std::int64_t adapter = -1;

  bool operator==(const CacheKey&) const = default;
};

struct BlockPoolOptions {
  std::int64_t blocks = 0;        // without the null block
  std::int64_t block_tokens = 1;  // a power of two
  std::int64_t slots = 1;
  bool prefix_cache = true;
};

struct BlockUsage {
  std::int64_t free = 0, cached = 0, used = 0, total = 0;
  std::int64_t free_slots = 0;
};

class BlockPool {
 public:
  explicit BlockPool(const BlockPoolOptions& options);
  ~BlockPool();

  const BlockPoolOptions& options() const { return options_; }
  BlockUsage usage() const;
  // Blocks that allocate() can give: free ones and cached ones.
  std::int64_t available() const { return std::ssize(free_) + cached_; }
  std::int64_t blocks_for(std::int64_t tokens) const {
    return ceil_div(tokens, options_.block_tokens);
  }

  // A block with one reference. Evicts the least recently used cached block that has no cached
  // child if none is free. available() must not be 0.
  BlockId allocate();
  void add_reference(BlockId block);
  // Drops a reference. Without references, a block stays cached if its content is known.
  void release(BlockId block);
  // Releases a sequence's blocks, the last first, so that the ends of sequences are evicted first.
  void release_all(std::span<const BlockId> blocks);
  std::int64_t references(BlockId block) const;

  // The longest chain of cached blocks with the content of the first tokens, at most
  // `most_blocks` of them, each with a new reference.
  std::vector<BlockId> find_prefix(std::span<const std::int32_t> tokens, const CacheKey& key,
                                   std::int64_t most_blocks);
  // Makes the first `full` blocks of a sequence findable: block i holds tokens [i, i + 1) *
  // block_tokens. Blocks [0, known) were made so before. A block whose content is known under
  // another id stays private to its sequence.
  void remember(std::span<const BlockId> blocks, std::span<const std::int32_t> tokens,
                const CacheKey& key, std::int64_t known, std::int64_t full);
  // Forgets all content: what is cached becomes free, what is used can no longer be found.
  void reset_prefix_cache();

  std::int64_t free_slots() const { return std::ssize(free_slots_); }
  std::int32_t take_slot();
  void release_slot(std::int32_t slot);

  // Error(kInternal) if the invariant does not hold.
  void check() const;

 private:
  struct Content;  // what a block holds, as a node of the tree of prefixes
  struct State {
    std::int64_t references = 0;
    Content* content = nullptr;  // null: unknown
  };
  // Order of eviction: least recently used first, the end of a sequence before its beginning.
  struct Leaf {
    std::int64_t last_use = 0;
    std::int64_t depth = 0;
    BlockId block = 0;
    bool operator<(const Leaf& other) const;
  };

  Content* find(const Content* parent, std::span<const std::int32_t> tokens, const CacheKey& key);
  static std::uint64_t hash_of(const Content* parent, std::span<const std::int32_t> tokens,
                               const CacheKey& key);
  void update_leaf(Content& content);
  void forget(Content& content);

  BlockPoolOptions options_;
  std::vector<State> states_;  // by block
  std::vector<BlockId> free_;
  std::vector<std::int32_t> free_slots_;
  std::int64_t used_ = 0, cached_ = 0, clock_ = 0;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<Content>> contents_;
  std::set<Leaf> leaves_;  // contents that can be evicted now
};

}  // namespace bev
