#include "infer/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "base/philox.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

std::vector<std::int32_t> counted(std::int64_t count, std::int32_t first = 0) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A sequence as a client of the pool.
struct Holder {
  std::vector<std::int32_t> tokens;
  CacheKey key;
  std::vector<BlockId> blocks;
};

Holder hold(BlockPool& pool, std::vector<std::int32_t> tokens, const CacheKey& key = {}) {
  Holder holder{std::move(tokens), key, {}};
  std::int64_t width = pool.options().block_tokens, full = std::ssize(holder.tokens) / width;
  holder.blocks = pool.find_prefix(holder.tokens, key, full);
  std::int64_t known = std::ssize(holder.blocks);
  while (std::ssize(holder.blocks) < pool.blocks_for(std::ssize(holder.tokens))) {
    holder.blocks.push_back(pool.allocate());
  }
  pool.remember(holder.blocks, holder.tokens, key, known, full);
  return holder;
}

std::int64_t hits(BlockPool& pool, const std::vector<std::int32_t>& tokens,
                  const CacheKey& key = {}) {
  std::vector<BlockId> found = pool.find_prefix(tokens, key, 1000);
  pool.release_all(found);
  return std::ssize(found);
}

TEST(BlockPool, BlocksAreDistinctAndTheNullBlockIsNeverGiven) {
  BlockPool pool({.blocks = 5, .block_tokens = 4});
  std::vector<BlockId> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(pool.allocate());
  std::ranges::sort(blocks);
  EXPECT_EQ(blocks, (std::vector<BlockId>{1, 2, 3, 4, 5}));
  EXPECT_EQ(pool.available(), 0);
  expect_error(ErrorKind::kInternal, {"no block"}, [&] { pool.allocate(); });
  pool.release_all(blocks);
  expect_error(ErrorKind::kInternal, {"twice"}, [&] { pool.release(3); });
  EXPECT_EQ(pool.usage().free, 5);
}

TEST(BlockPool, FullBlocksAreFoundByTheirWholePrefix) {
  BlockPool pool({.blocks = 16, .block_tokens = 4});
  Holder first = hold(pool, counted(11));
  EXPECT_EQ(hits(pool, counted(11)), 2);
  EXPECT_EQ(hits(pool, counted(7)), 1);
  EXPECT_EQ(hits(pool, counted(3)), 0);
  EXPECT_EQ(hits(pool, counted(11, 1)), 0);
  // The second block alone is no prefix.
  EXPECT_EQ(hits(pool, counted(8, 4)), 0);
  std::vector<std::int32_t> other = counted(8);
  other[1] = 50;
  EXPECT_EQ(hits(pool, other), 0);
  pool.release_all(first.blocks);
  EXPECT_EQ(pool.usage().cached, 2);
  EXPECT_EQ(hits(pool, counted(11)), 2);
  pool.check();
}

TEST(BlockPool, SaltAndAdapterSeparatePrefixes) {
  BlockPool pool({.blocks = 16, .block_tokens = 2});
  const CacheKey alice{"alice", -1}, bob{"bob", -1}, tuned{"alice", 3};
  hold(pool, counted(6), alice);
  EXPECT_EQ(hits(pool, counted(6), alice), 3);
  EXPECT_EQ(hits(pool, counted(6), bob), 0);
  EXPECT_EQ(hits(pool, counted(6), tuned), 0);
  EXPECT_EQ(hits(pool, counted(6)), 0);
}

TEST(BlockPool, LeavesOfTheLeastRecentlyUsedSequenceGoFirst) {
  BlockPool pool({.blocks = 6, .block_tokens = 1});
  Holder old = hold(pool, counted(3)), young = hold(pool, counted(3, 10));
  pool.release_all(old.blocks);
  pool.release_all(young.blocks);
  EXPECT_EQ(pool.usage().cached, 6);
  BlockId taken = pool.allocate();
  EXPECT_EQ(taken, old.blocks[2]);  // the end of the older one
  EXPECT_EQ(hits(pool, counted(3)), 2);
  EXPECT_EQ(hits(pool, counted(3, 10)), 3);  // which makes it the younger one still
  BlockId second = pool.allocate();
  EXPECT_EQ(second, old.blocks[1]);
  // Use of the older one's beginning makes it younger.
  hits(pool, counted(1));
  EXPECT_EQ(pool.allocate(), young.blocks[2]);
  pool.check();
}

TEST(BlockPool, SharedBlocksOutliveTheirFirstOwner) {
  BlockPool pool({.blocks = 8, .block_tokens = 2});
  Holder first = hold(pool, counted(6)), second = hold(pool, counted(8));
  EXPECT_TRUE(std::equal(first.blocks.begin(), first.blocks.end(), second.blocks.begin()));
  EXPECT_EQ(pool.references(first.blocks[0]), 2);
  pool.release_all(first.blocks);
  EXPECT_EQ(pool.references(second.blocks[0]), 1);
  EXPECT_EQ(pool.usage().used, 4);
  pool.release_all(second.blocks);
  EXPECT_EQ(pool.usage().cached, 4);
}

TEST(BlockPool, ResetForgetsContentButKeepsWhatIsUsed) {
  BlockPool pool({.blocks = 8, .block_tokens = 2});
  Holder used = hold(pool, counted(4)), cached = hold(pool, counted(4, 20));
  pool.release_all(cached.blocks);
  pool.reset_prefix_cache();
  EXPECT_EQ(pool.usage().cached, 0);
  EXPECT_EQ(pool.usage().used, 2);
  EXPECT_EQ(hits(pool, counted(4)), 0);
  pool.check();
  pool.release_all(used.blocks);
  EXPECT_EQ(pool.usage().free, 8);
}

TEST(BlockPool, WithoutACacheNothingIsKept) {
  BlockPool pool({.blocks = 8, .block_tokens = 2, .prefix_cache = false});
  Holder holder = hold(pool, counted(8));
  EXPECT_EQ(hits(pool, counted(8)), 0);
  pool.release_all(holder.blocks);
  EXPECT_EQ(pool.usage().free, 8);
}

TEST(BlockPool, SlotsAreGivenOnce) {
  BlockPool pool({.blocks = 1, .block_tokens = 1, .slots = 3});
  EXPECT_EQ(pool.take_slot(), 0);
  EXPECT_EQ(pool.take_slot(), 1);
  pool.release_slot(0);
  EXPECT_EQ(pool.take_slot(), 0);
  EXPECT_EQ(pool.take_slot(), 2);
  expect_error(ErrorKind::kInternal, {"no slot"}, [&] { pool.take_slot(); });
}

// Random sequences come, grow, fork and go; what is found must be what a plain map of all contents
// that can still be cached says, and no block of one sequence may serve another's content.
class RandomWalk {
 public:
  explicit RandomWalk(std::uint64_t seed) : seed_(seed), pool_({.blocks = 40, .block_tokens = 2}) {}

  void run(std::int64_t operations) {
    for (std::int64_t i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
      step();
      if (i % 1000 == 0) pool_.check();
      BlockUsage now = pool_.usage();
      ASSERT_EQ(now.free + now.cached + now.used, now.total);
    }
    pool_.check();
    for (Holder& holder : holders_) pool_.release_all(holder.blocks);
    ASSERT_EQ(pool_.usage().used, 0);
  }
  std::int64_t found() const { return found_; }

 private:
  std::uint32_t draw(std::uint32_t below) {
    return philox({static_cast<std::uint32_t>(counter_++), 0, 0, 0}, seed_)[0] % below;
  }
  void step() {
    std::uint32_t kind = draw(100);
    if (kind < 30) {
      begin();
    } else if (kind < 75) {
      grow();
    } else if (kind < 80) {
      fork();
    } else if (kind < 99) {
      end();
    } else if (draw(50) == 0) {
      pool_.reset_prefix_cache();
      contents_.clear();
    }
  }
  // Few tokens and keys, so that prefixes repeat.
  void begin() {
    Holder holder;
    holder.key.salt = draw(4) == 0 ? "other" : "";
    for (std::uint32_t i = 0, length = 1 + draw(9); i < length; ++i) {
      holder.tokens.push_back(static_cast<std::int32_t>(draw(3)));
    }
    std::int64_t full = std::ssize(holder.tokens) / 2;
    holder.blocks = pool_.find_prefix(holder.tokens, holder.key, full);
    found_ += std::ssize(holder.blocks);
    for (std::size_t i = 0; i < holder.blocks.size(); ++i) {
      // The model: the block was last written with this prefix.
      ASSERT_EQ(contents_[holder.blocks[i]], content(holder, i + 1));
    }
    std::int64_t known = std::ssize(holder.blocks);
    if (pool_.blocks_for(std::ssize(holder.tokens)) - known > pool_.available()) {
      return pool_.release_all(holder.blocks);
    }
    take_blocks(holder);
    pool_.remember(holder.blocks, holder.tokens, holder.key, known, full);
    holders_.push_back(std::move(holder));
  }
  void grow() {
    if (holders_.empty()) return;
    Holder& holder = holders_[draw(static_cast<std::uint32_t>(holders_.size()))];
    std::size_t last = holder.tokens.size() / 2;
    bool shared = last < holder.blocks.size() && pool_.references(holder.blocks[last]) > 1;
    bool needs = shared || last == holder.blocks.size();
    if (needs && pool_.available() == 0) return;
    if (shared) {
      BlockId own = pool_.allocate();
      contents_.erase(own);
      pool_.release(holder.blocks[last]);
      holder.blocks[last] = own;
    }
    holder.tokens.push_back(static_cast<std::int32_t>(draw(3)));
    take_blocks(holder);
    std::int64_t full = std::ssize(holder.tokens) / 2;
    pool_.remember(holder.blocks, holder.tokens, holder.key, full - 1 < 0 ? 0 : full - 1, full);
  }
  void fork() {
    if (holders_.empty()) return;
    Holder copy = holders_[draw(static_cast<std::uint32_t>(holders_.size()))];
    for (BlockId block : copy.blocks) pool_.add_reference(block);
    holders_.push_back(std::move(copy));
  }
  void end() {
    if (holders_.empty()) return;
    std::size_t at = draw(static_cast<std::uint32_t>(holders_.size()));
    pool_.release_all(holders_[at].blocks);
    holders_.erase(holders_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  void take_blocks(Holder& holder) {
    while (std::ssize(holder.blocks) < pool_.blocks_for(std::ssize(holder.tokens))) {
      BlockId block = pool_.allocate();
      for (const Holder& other : holders_) {
        ASSERT_TRUE(&other == &holder ||
                    std::ranges::find(other.blocks, block) == other.blocks.end());
      }
      holder.blocks.push_back(block);
    }
    for (std::size_t i = 0; i < holder.tokens.size() / 2; ++i) {
      contents_[holder.blocks[i]] = content(holder, i + 1);
    }
  }
  // What the first blocks of a sequence hold.
  static std::string content(const Holder& holder, std::size_t blocks) {
    std::string text = holder.key.salt + ":";
    for (std::size_t i = 0; i < 2 * blocks; ++i) {
      text += static_cast<char>('0' + holder.tokens[i]);
    }
    return text;
  }

  std::uint64_t seed_, counter_ = 0;
  BlockPool pool_;
  std::vector<Holder> holders_;
  std::map<BlockId, std::string> contents_;
  std::int64_t found_ = 0;
};

TEST(BlockPool, RandomWalksKeepTheInvariant) {
  for (std::uint64_t seed : {1, 2, 3, 4, 5}) {
    RandomWalk walk(seed);
    walk.run(200000);
    EXPECT_GT(walk.found(), 10000);
  }
}

}  // namespace
}  // namespace bev
