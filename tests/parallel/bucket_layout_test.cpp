#include "parallel/store/bucket_layout.h"

#include <gtest/gtest.h>

#include "parallel/store/shard_plan.h"

namespace bev::test {
namespace {

TEST(BucketLayout, StartsAreMultiplesOf64) {
  const std::int64_t offsets[] = {0, 1, 63, 64, 65}, starts[] = {0, 64, 64, 64, 128};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(padded_start(offsets[i]), starts[i]);
}

TEST(BucketLayout, AParameterIsInItsUnitOrInThatOfItsModule) {
  auto unit = [](const char* name, const char* given = "") {
    Param param;
    param.name = name;
    param.unit = given;
    return std::string(unit_of(param));
  };
  EXPECT_EQ(unit("decoder.layers.3.mlp.linear_fc1.bias", "decoder.layers.3"), "decoder.layers.3");
  EXPECT_EQ(unit("decoder.final_layernorm.bias"), "decoder.final_layernorm");
  EXPECT_EQ(unit("output_layer.weight"), "output_layer");
  EXPECT_EQ(unit("table"), "table");
}

TEST(BucketLayout, BucketsGrowWithTheGroup) {
  StoreOptions options;
  EXPECT_EQ(bucket_rules(options, {1, 1, 2, 1}).elements, 40'000'000);
  EXPECT_EQ(bucket_rules(options, {8, 2, 32, 4}).elements, 64'000'000);
  options.bucket_elements = 100;
  EXPECT_EQ(bucket_rules(options, {1, 1, 2, 1}).elements, 100);
}

TEST(BucketLayout, HoldsWholeParametersOnceInEqualParts) {
  const std::vector<std::int64_t> sizes = {1, 63, 64, 65, 1000, 3, 129, 5000, 2};
  const std::vector<std::string> units = {"a", "b", "b", "c", "c", "c", "d", "d", "e"};
  for (std::int64_t parts : {1, 2, 3, 4, 8}) {
    for (bool by_unit : {false, true}) {
      for (std::int64_t elements : {1, 300, 100'000}) {
        std::vector<BucketItem> items;
        for (std::size_t i = 0; i < sizes.size(); ++i)
          items.push_back({units[i], sizes[i], i == 3});
        BucketLayout layout = layout_buckets(items, {parts, by_unit, elements});
        std::vector<int> seen;
        for (const BucketLayout::Bucket& bucket : layout.buckets) {
          EXPECT_EQ(bucket.size % parts, 0);
          std::int64_t end = 0;
          for (int param : bucket.params) {
            EXPECT_TRUE(param != 3 || bucket.params.size() == 1);
            auto front = static_cast<std::size_t>(bucket.params.front());
            EXPECT_TRUE(!by_unit || units[static_cast<std::size_t>(param)] == units[front]);
            std::int64_t offset = layout.places[static_cast<std::size_t>(param)].offset;
            EXPECT_EQ(offset % 64, 0);
            EXPECT_GE(offset, end);
            end = offset + sizes[static_cast<std::size_t>(param)];
            seen.push_back(param);
          }
          EXPECT_LE(end, bucket.size);
          std::int64_t covered = 0;
          for (std::int64_t i = 0; i < parts; ++i) {
            Range part = bucket_part_range(bucket, parts, i);
            EXPECT_EQ(part.begin, covered);
            covered = part.end;
          }
          EXPECT_EQ(covered, bucket.size);
        }
        std::size_t buckets = by_unit ? 6 : elements == 1 ? 9 : elements == 300 ? 5 : 3;
        EXPECT_EQ(layout.buckets.size(), buckets);
        EXPECT_EQ(seen, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
      }
    }
  }
}

TEST(BucketLayout, RanksWithUnequalPartsFillTheSameBuckets) {
  Param table, norm;
  table.name = "embedding.word_embeddings.weight";
  table.shape = {13, 100};
  table.split.dim = 0;
  norm.name = "decoder.final_layernorm.weight";
  norm.shape = {100};
  for (std::int64_t rank : {0, 1}) {
    std::vector<BucketItem> items = {bucket_item(table, {2, rank}), bucket_item(norm, {2, rank})};
    EXPECT_EQ(items[0].elements, rank == 0 ? 700 : 600);
    // The 700 elements of the first rank close the bucket on both ranks.
    EXPECT_EQ(layout_buckets(items, {1, false, 650}).buckets.size(), 2u);
    EXPECT_EQ(layout_buckets(items, {1, false, 701}).buckets.size(), 1u);
  }
}

TEST(BucketLayout, BucketsInF32LieAmongOthersAligned) {
  std::vector<BucketItem> items(4);
  for (BucketItem& item : items) item.elements = 5;
  items[1].format = items[3].format = ParamFormat::kF32;
  items[3].of_experts = true;
  // 96 ranks get four numbers each of a bucket of 384, the two of experts 64.
  BucketLayout layout = layout_buckets(items, {96, false, 1000, 2});
  ASSERT_EQ(layout.buckets.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(layout.buckets[i].format, items[i].format) << i;
  using Begins = std::vector<std::int64_t>;
  EXPECT_EQ(bucket_begins(layout, Dtype::kBf16, {}), (Begins{0, 768, 2304, 3072, 3584}));
  EXPECT_EQ(bucket_begins(layout, Dtype::kBf16, {96, 2}), (Begins{0, 64, 128, 192, 448}));
  EXPECT_EQ(bucket_begins(layout, Dtype::kF64, {96, 2}), (Begins{0, 64, 128, 192, 704}));
}

}  // namespace
}  // namespace bev::test
