#include "base/spare_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace bev {
namespace {

TEST(SpareMemory, WhatIsGivenBackServesTheNextOfThatSize) {
  SpareMemory memory;
  void* first = memory.take(100);
  void* second = memory.take(100);
  void* large = memory.take(1000);
  std::memset(first, 1, 100);
  std::memset(second, 2, 100);
  std::memset(large, 3, 1000);
  EXPECT_EQ((std::set<void*>{first, second, large}.size()), 3u);
  memory.give_back(first, 100);
  memory.give_back(large, 1000);
  EXPECT_EQ(memory.take(90), first);
  EXPECT_EQ(memory.take(1000), large);
  EXPECT_NE(memory.take(100), second);
}

TEST(SpareMemory, ObjectsMayOutliveTheirMaker) {
  std::shared_ptr<std::vector<int>> kept;
  {
    auto memory = std::make_shared<SpareMemory>();
    kept = std::allocate_shared<std::vector<int>>(SpareAllocator<std::vector<int>>(memory), 3, 7);
  }
  EXPECT_EQ(*kept, (std::vector<int>{7, 7, 7}));
}

}  // namespace
}  // namespace bev
