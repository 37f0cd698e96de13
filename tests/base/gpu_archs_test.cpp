#include "base/gpu_archs.h"

#include <gtest/gtest.h>

namespace bev {
namespace {

TEST(GpuArchs, MachineCodeRunsOnItsMajorVersion) {
  EXPECT_TRUE(archs_fit("80-real,90a-real", 80));
  EXPECT_TRUE(archs_fit("80-real,90a-real", 86));
  EXPECT_TRUE(archs_fit("86-real", 89));
  EXPECT_FALSE(archs_fit("86-real", 80));
  EXPECT_FALSE(archs_fit("80-real,90a-real", 100));
  EXPECT_FALSE(archs_fit("80-real", 75));
}

TEST(GpuArchs, ALetterIsForOneArchitecture) {
  EXPECT_TRUE(archs_fit("90a", 90));
  EXPECT_FALSE(archs_fit("90a", 100));
  EXPECT_FALSE(archs_fit("90a-real", 89));
  EXPECT_TRUE(archs_fit("100f-real", 100));
}

TEST(GpuArchs, PtxRunsOnAllLaterOnes) {
  EXPECT_TRUE(archs_fit("80,90a-real", 121));
  EXPECT_TRUE(archs_fit("80,90a-real", 110));
  EXPECT_FALSE(archs_fit("80,90a-real", 75));
  EXPECT_FALSE(archs_fit("120", 100));
}

TEST(GpuArchs, TheListIsForPeople) {
  EXPECT_EQ(archs_text("80,86-real,90a-real"), "80 86 90a");
  EXPECT_EQ(archs_text("90a"), "90a");
}

TEST(GpuArchs, SharedMemoryOfABlock) {
  EXPECT_EQ(block_shared_memory(80), 163u * 1024);
  EXPECT_EQ(block_shared_memory(86), 99u * 1024);
  EXPECT_EQ(block_shared_memory(89), 99u * 1024);
  EXPECT_EQ(block_shared_memory(90), 227u * 1024);
  EXPECT_EQ(block_shared_memory(100), 227u * 1024);
  EXPECT_EQ(block_shared_memory(120), 99u * 1024);
}

}  // namespace
}  // namespace bev
