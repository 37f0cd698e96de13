#include "infer/block_pool.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/philox.h"

namespace bev {

// A full block in the tree of prefixes. Tokens are kept, so that a collision of hashes is noticed.
struct BlockPool::Content {
  BlockId block = 0;
  std::uint64_t hash = 0;  // of the chain up to this block
  Content* parent = nullptr;
  CacheKey key;
  std::vector<std::int32_t> tokens;
  std::int64_t depth = 0;
  std::int64_t children = 0;  // known contents
  std::int64_t last_use = 0;
  bool evictable = false;  // it is in leaves_
};

bool BlockPool::Leaf::operator<(const Leaf& other) const {
  return std::tuple(last_use, -depth, block) <
         std::tuple(other.last_use, -other.depth, other.block);
}

BlockPool::BlockPool(const BlockPoolOptions& options) : options_(options) {
  bool power = options.block_tokens > 0 && (options.block_tokens & (options.block_tokens - 1)) == 0;
  BEV_CHECK(power && options.blocks > 0 && options.slots > 0, ErrorKind::kInternal,
            "block pool: ", options.blocks, " blocks of ", options.block_tokens, " tokens and ",
            options.slots, " slots");
  states_.resize(static_cast<std::size_t>(options.blocks + 1));
  for (std::int64_t block = options.blocks; block > 0; --block) {
    free_.push_back(static_cast<BlockId>(block));
  }
  for (std::int64_t slot = options.slots; slot-- > 0;) {
    free_slots_.push_back(static_cast<std::int32_t>(slot));
  }
}

BlockPool::~BlockPool() = default;

BlockUsage BlockPool::usage() const {
  return {std::ssize(free_), cached_, used_, options_.blocks, std::ssize(free_slots_)};
}

BlockId BlockPool::allocate() {
  if (free_.empty()) {
    BEV_CHECK(!leaves_.empty(), ErrorKind::kInternal, "block pool: no block is left of ",
              options_.blocks);
    forget(*states_[static_cast<std::size_t>(leaves_.begin()->block)].content);
  }
  BlockId block = free_.back();
  free_.pop_back();
  states_[static_cast<std::size_t>(block)].references = 1;
  ++used_;
  return block;
}

void BlockPool::add_reference(BlockId block) {
  State& state = states_[static_cast<std::size_t>(block)];
  if (state.references++ > 0) return;
  BEV_CHECK(state.content != nullptr, ErrorKind::kInternal, "block pool: block ", block,
            " is free and cannot be shared");
  --cached_;
  ++used_;
  update_leaf(*state.content);
}

void BlockPool::release(BlockId block) {
  State& state = states_[static_cast<std::size_t>(block)];
  BEV_CHECK(state.references > 0, ErrorKind::kInternal, "block pool: block ", block,
            " is released twice");
  if (--state.references > 0) return;
  --used_;
  if (state.content == nullptr) {
    free_.push_back(block);
    return;
  }
  ++cached_;
  state.content->last_use = ++clock_;
  update_leaf(*state.content);
}

void BlockPool::release_all(std::span<const BlockId> blocks) {
  for (std::size_t i = blocks.size(); i-- > 0;) release(blocks[i]);
}

std::int64_t BlockPool::references(BlockId block) const {
  return states_[static_cast<std::size_t>(block)].references;
}

// Only blocks without references and without cached children may go, so that a chain never has a
// hole.
void BlockPool::update_leaf(Content& content) {
  const Leaf leaf{content.last_use, content.depth, content.block};
  if (content.evictable) leaves_.erase(leaf);
  content.evictable = content.children == 0 && references(content.block) == 0;
  if (content.evictable) leaves_.insert(leaf);
}

void BlockPool::forget(Content& content) {
  State& state = states_[static_cast<std::size_t>(content.block)];
  if (content.evictable) leaves_.erase({content.last_use, content.depth, content.block});
  content.evictable = false;
  state.content = nullptr;
  if (state.references == 0) {
    --cached_;
    free_.push_back(content.block);
  }
  if (Content* parent = content.parent) {
    --parent->children;
    update_leaf(*parent);
  }
  auto [begin, end] = contents_.equal_range(content.hash);
  contents_.erase(
      std::find_if(begin, end, [&](const auto& entry) { return entry.second.get() == &content; }));
}

std::uint64_t BlockPool::hash_of(const Content* parent, std::span<const std::int32_t> tokens,
                                 const CacheKey& key) {
  std::uint64_t hash = parent != nullptr
                           ? parent->hash
                           : mix_bits(hash_name(key.salt), static_cast<std::uint64_t>(key.adapter));
  for (std::int32_t token : tokens) hash = mix_bits(hash, static_cast<std::uint64_t>(token));
  return hash;
}

BlockPool::Content* BlockPool::find(const Content* parent, std::span<const std::int32_t> tokens,
                                    const CacheKey& key) {
  auto [begin, end] = contents_.equal_range(hash_of(parent, tokens, key));
  for (auto at = begin; at != end; ++at) {
    Content& content = *at->second;
    if (content.parent == parent && content.key == key &&
        std::ranges::equal(content.tokens, tokens))
      return &content;
  }
  return nullptr;
}

std::vector<BlockId> BlockPool::find_prefix(std::span<const std::int32_t> tokens,
                                            const CacheKey& key, std::int64_t most_blocks) {
  std::vector<BlockId> found;
  if (!options_.prefix_cache) return found;
  auto width = static_cast<std::size_t>(options_.block_tokens);
  const Content* parent = nullptr;
  for (std::size_t at = 0; at + width <= tokens.size() && std::ssize(found) < most_blocks;
       at += width) {
    Content* content = find(parent, tokens.subspan(at, width), key);
    if (content == nullptr) break;
    found.push_back(content->block);
    parent = content;
  }
  for (BlockId block : found) add_reference(block);
  return found;
}

void BlockPool::remember(std::span<const BlockId> blocks, std::span<const std::int32_t> tokens,
                         const CacheKey& key, std::int64_t known, std::int64_t full) {
  if (!options_.prefix_cache) return;
  auto width = static_cast<std::size_t>(options_.block_tokens);
  Content* parent = nullptr;
  for (auto i = static_cast<std::size_t>(known); i < static_cast<std::size_t>(full); ++i) {
    if (i > 0) {
      parent = states_[static_cast<std::size_t>(blocks[i - 1])].content;
      // The block before is private: its content is known under another id.
      if (parent == nullptr) return;
    }
    std::span<const std::int32_t> own = tokens.subspan(i * width, width);
    State& state = states_[static_cast<std::size_t>(blocks[i])];
    if (state.content != nullptr) continue;
    if (find(parent, own, key) != nullptr) return;
    auto content = std::make_unique<Content>();
    content->block = blocks[i];
    content->hash = hash_of(parent, own, key);
    content->parent = parent;
    content->key = key;
    content->tokens.assign(own.begin(), own.end());
    content->depth = static_cast<std::int64_t>(i);
    if (parent != nullptr) {
      ++parent->children;
      update_leaf(*parent);
    }
    state.content = content.get();
    contents_.emplace(content->hash, std::move(content));
  }
}

void BlockPool::reset_prefix_cache() {
  for (State& state : states_) {
    Content* content = std::exchange(state.content, nullptr);
    if (content == nullptr || state.references > 0) continue;
    --cached_;
    free_.push_back(content->block);
  }
  leaves_.clear();
  contents_.clear();
}

std::int32_t BlockPool::take_slot() {
  BEV_CHECK(!free_slots_.empty(), ErrorKind::kInternal, "block pool: no slot is left of ",
            options_.slots);
  std::int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void BlockPool::release_slot(std::int32_t slot) { free_slots_.push_back(slot); }

void BlockPool::check() const {
  std::int64_t used = 0, cached = 0, leaves = 0;
  for (std::size_t block = 1; block < states_.size(); ++block) {
    const State& state = states_[block];
    used += state.references > 0 ? 1 : 0;
    cached += state.references == 0 && state.content != nullptr ? 1 : 0;
    leaves += state.content != nullptr && state.content->evictable ? 1 : 0;
  }
  BlockUsage now = usage();
  bool whole = now.free + now.cached + now.used == now.total && used == used_ &&
               cached == cached_ && leaves == std::ssize(leaves_) && (cached == 0 || leaves > 0);
  BEV_CHECK(whole, ErrorKind::kInternal, "block pool: free ", now.free, " + cached ", now.cached,
            " + used ", now.used, " of ", now.total, "; counted ", used, " used, ", cached,
            " cached, ", leaves, " of ", leaves_.size(), " evictable");
}

}  // namespace bev
