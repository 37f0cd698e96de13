#include "tensor/arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "base/divide.h"
#include "tensor/tensor.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

constexpr std::size_t kChunk = std::size_t{32} << 20;

// Addresses without memory: each chunk starts where the last one ends.
class FakeMemory : public MemorySource {
 public:
  void* allocate(std::size_t bytes) override {
    void* address = reinterpret_cast<void*>(next_);
    next_ += bytes;
    ++calls;
    return address;
  }
  void release(void*, std::size_t) override { --calls; }
  int calls = 0;

 private:
  std::uintptr_t next_ = 1 << 20;
};

struct Allocation {
  View view;
  BlockRef block;
};
Allocation take(Arena& arena, std::size_t bytes, const char* tag = "test") {
  Allocation a;
  a.block = arena.allocate(bytes, tag, &a.view);
  return a;
}
std::uintptr_t address(const Allocation& a) {
  return reinterpret_cast<std::uintptr_t>(a.view.data);
}

TEST(Arena, AlignsAndRoundsTo64Bytes) {
  Arena arena(make_host_memory());
  for (std::size_t bytes : {0u, 1u, 63u, 64u, 65u, 1000u}) {
    Allocation a = take(arena, bytes);
    EXPECT_EQ(address(a) % 64, 0u);
    EXPECT_EQ(arena.in_use(), std::max<std::size_t>(round_up(bytes, 64), 64));
  }
  EXPECT_EQ(arena.in_use(), 0u);
}

TEST(Arena, GivesTheSameAddressesForTheSameRequests) {
  Arena arena(make_host_memory());
  auto step = [&] {
    std::mt19937 draw(3);
    std::vector<Allocation> held;
    std::vector<std::uintptr_t> seen;
    for (int i = 0; i < 500; ++i) {
      if (!held.empty() && draw() % 3 == 0) {
        held.erase(held.begin() + draw() % held.size());
      } else {
        held.push_back(take(arena, draw() % 5000));
        seen.push_back(address(held.back()));
      }
    }
    return seen;
  };
  std::vector<std::uintptr_t> first = step();
  EXPECT_EQ(step(), first);
  EXPECT_EQ(step(), first);
}

TEST(Arena, MergesNeighboursInEveryOrderOfRelease) {
  std::vector<std::size_t> order = {0, 1, 2};
  do {
    auto memory = std::make_unique<FakeMemory>();
    FakeMemory& source = *memory;
    Arena arena(std::move(memory));
    std::vector<Allocation> parts;
    for (int i = 0; i < 3; ++i) parts.push_back(take(arena, kChunk / 4));
    Allocation rest = take(arena, kChunk / 4);
    for (std::size_t i : order) parts[i] = Allocation();
    // Fits only where the three were, as one piece.
    EXPECT_EQ(address(take(arena, 3 * (kChunk / 4))), std::uintptr_t{1} << 20);
    EXPECT_EQ(source.calls, 1);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Arena, NeverMergesAcrossChunks) {
  auto memory = std::make_unique<FakeMemory>();
  FakeMemory& source = *memory;
  Arena arena(std::move(memory));
  {
    Allocation first = take(arena, kChunk), second = take(arena, kChunk);
    EXPECT_EQ(address(second), address(first) + kChunk);
    EXPECT_EQ(source.calls, 2);
  }
  take(arena, 2 * kChunk);
  EXPECT_EQ(source.calls, 3) << "two chunks are not one piece";
}

TEST(Arena, TakesTheSmallestPieceThatFits) {
  Arena arena(std::make_unique<FakeMemory>());
  Allocation large = take(arena, 1024), wall1 = take(arena, 64), small = take(arena, 256),
             wall2 = take(arena, 64);
  std::uintptr_t at_large = address(large), at_small = address(small);
  large = Allocation();
  small = Allocation();
  Allocation a = take(arena, 200);
  EXPECT_EQ(address(a), at_small);
  Allocation b = take(arena, 200);
  EXPECT_EQ(address(b), at_large);
}

TEST(Arena, CountsPeakAndTags) {
  Arena arena(std::make_unique<FakeMemory>());
  Allocation weights = take(arena, 640, "weights");
  {
    Allocation a = take(arena, 1280, "activations"), b = take(arena, 64, "activations");
    using Table = std::vector<std::pair<std::string, std::size_t>>;
    EXPECT_EQ(arena.by_tag(), (Table{{"activations", 1344}, {"weights", 640}}));
  }
  EXPECT_EQ(arena.in_use(), 640u);
  EXPECT_EQ(arena.peak(), 1984u);
  arena.reset_peak();
  EXPECT_EQ(arena.peak(), 640u);
  EXPECT_EQ(arena.by_tag().front().first, "weights");
}

TEST(Arena, RemembersWhatEachTagHadAtThePeak) {
  Arena arena(std::make_unique<FakeMemory>());
  using Table = Arena::TagTable;
  Allocation weights = take(arena, 640, "weights");
  { Allocation a = take(arena, 1280, "activations"), b = take(arena, 64, "gradients"); }
  Allocation later = take(arena, 320, "gradients");
  EXPECT_EQ(arena.peak_by_tag(),
            (Table{{"activations", 1280}, {"weights", 640}, {"gradients", 64}}));
  EXPECT_EQ(arena.by_tag(), (Table{{"weights", 640}, {"gradients", 320}}));
  arena.reset_peak();
  EXPECT_EQ(arena.peak_by_tag(), arena.by_tag());
}

// A source with little left: the arena takes what it needs where a whole chunk is not there.
TEST(Arena, AsksForLessWhereTheSourceHasNoWholeChunk) {
  struct Small : FakeMemory {
    void* allocate(std::size_t bytes) override {
      BEV_CHECK(bytes <= left, ErrorKind::kDevice, "the source has no ", bytes);
      left -= bytes;
      return FakeMemory::allocate(bytes);
    }
    std::size_t left = kChunk + 1000;
  };
  auto memory = std::make_unique<Small>();
  Small& source = *memory;
  Arena arena(std::move(memory));
  Allocation first = take(arena, kChunk), second = take(arena, 640);
  EXPECT_EQ(source.left, 360u);
  EXPECT_EQ(arena.reserved(), kChunk + 640);
  EXPECT_THROW(take(arena, 640, "third"), OutOfMemory);
  Allocation rest = take(arena, 320);
}

// What is reserved and not asked for stays within 4 GiB, however much there is already.
TEST(Arena, LargeArenasKeepLittleInReserve) {
  constexpr std::size_t kGiB = std::size_t{1} << 30;
  Arena arena(std::make_unique<FakeMemory>());
  Allocation most = take(arena, 80 * kGiB);
  Allocation more = take(arena, 64);
  EXPECT_EQ(arena.reserved(), 84 * kGiB);
  Allocation large = take(arena, 30 * kGiB);
  EXPECT_EQ(arena.reserved(), 114 * kGiB);
}

TEST(Arena, OverTheLimitIsAnErrorWithTheTableOfTags) {
  auto memory = std::make_unique<FakeMemory>();
  FakeMemory& source = *memory;
  Arena arena(std::move(memory), 48 << 20);
  Allocation weights = take(arena, 30 << 20, "weights"), cache = take(arena, 4 << 20, "kv cache");
  expect_error(
      ErrorKind::kDevice,
      {"out of memory", "20.00 MiB", "48.00 MiB", "weights: 30.00 MiB", "kv cache: 4.00 MiB"},
      [&] { take(arena, 20 << 20); });
  // It goes on after the error, up to the limit.
  Allocation rest = take(arena, 12 << 20);
  EXPECT_EQ(arena.in_use(), std::size_t{46} << 20);
  EXPECT_EQ(source.calls, 3);
}

TEST(Arena, GivesAllChunksBack) {
  struct Counting : FakeMemory {
    explicit Counting(int* left) : left_(left) {}
    ~Counting() override { *left_ = calls; }
    int* left_;
  };
  int left = -1;
  {
    Arena arena(std::make_unique<Counting>(&left));
    take(arena, 1);
    take(arena, 3 * kChunk);
  }
  EXPECT_EQ(left, 0);
}

TEST(Arena, BlocksAreCountedAcrossCopies) {
  Arena arena(make_host_memory());
  Tensor a(arena, Dtype::kF32, {4, 8}, "test");
  EXPECT_TRUE(a.unique());
  {
    Tensor rows = a.rows(1, 3);
    EXPECT_FALSE(a.unique());
    EXPECT_EQ(rows.as<float>(), a.as<float>() + 8);
    a = Tensor();
    EXPECT_TRUE(rows.unique());
    EXPECT_EQ(arena.in_use(), 128u);
    Tensor& self = rows;
    rows = self;
    EXPECT_EQ(arena.in_use(), 128u);
  }
  EXPECT_EQ(arena.in_use(), 0u);
}

// Against a map of what is held: pieces never overlap, contents stay, memory returns.
TEST(Arena, RandomRequestsNeverOverlap) {
  Arena arena(make_host_memory());
  std::mt19937 draw(11);
  struct Piece {
    Allocation memory;
    std::size_t bytes;
    unsigned char mark;
  };
  std::map<std::uintptr_t, Piece> held;
  std::size_t in_use = 0, peak = 0;
  for (int i = 0; i < 4000; ++i) {
    if (held.size() > 60 || (!held.empty() && draw() % 5 < 2)) {
      auto gone = std::next(held.begin(), static_cast<std::ptrdiff_t>(draw() % held.size()));
      const auto* bytes = static_cast<const unsigned char*>(gone->second.memory.view.data);
      for (std::size_t b = 0; b < gone->second.bytes; b += 37)
        ASSERT_EQ(bytes[b], gone->second.mark);
      in_use -= round_up(gone->second.bytes, 64);
      held.erase(gone);
      continue;
    }
    std::size_t bytes = 1 + (draw() % 10 == 0 ? draw() % 400'000 : draw() % 4000);
    Piece piece{take(arena, bytes), bytes, static_cast<unsigned char>(draw())};
    std::uintptr_t begin = address(piece.memory);
    auto after = held.lower_bound(begin);
    if (after != held.end()) {
      ASSERT_LE(begin + bytes, after->first);
    }
    if (after != held.begin()) {
      auto before = std::prev(after);
      ASSERT_LE(before->first + before->second.bytes, begin);
    }
    std::memset(piece.memory.view.data, piece.mark, bytes);
    held.emplace(begin, std::move(piece));
    in_use += round_up(bytes, 64);
    peak = std::max(peak, in_use);
    ASSERT_EQ(arena.in_use(), in_use);
    ASSERT_EQ(arena.peak(), peak);
  }
  held.clear();
  EXPECT_EQ(arena.in_use(), 0u);
}

}  // namespace
}  // namespace bev
