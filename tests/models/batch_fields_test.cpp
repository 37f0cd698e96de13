// Named fields of micro-batches: split over context-parallel ranks like the tokens, one row per
// sample, or with their own layout; preserved by all code that copies batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "data/batch.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_rig.h"

namespace bev::test {
namespace {

using testing::ElementsAre;

constexpr FieldId kMarks{"marks"}, kMargin{"margin"}, kSource{"source"};

// Tokens from `first` on; a mark per token, ten times its value; a source of `source` tokens, 1000
// higher.
TokenSample sample_of(std::int32_t first, std::size_t length, std::size_t source) {
  std::vector<std::int32_t> tokens(length + 1), other(source);
  std::iota(tokens.begin(), tokens.end(), first);
  std::iota(other.begin(), other.end(), first + 1000);
  TokenSample sample = window_sample(tokens);
  std::vector<float> marks;
  for (std::int32_t token : sample.tokens) marks.push_back(static_cast<float>(10 * token));
  sample.fields = {{kMarks, FieldRows::kTokens, marks},
                   {kMargin, FieldRows::kSamples, std::vector<double>{first + 0.5}},
                   {kSource, FieldRows::kOwn, other}};
  return sample;
}

TEST(BatchFields, FollowTheTokensOfTheirRank) {
  const std::vector<TokenSample> samples = {sample_of(0, 9, 4), sample_of(100, 5, 7)};
  for (int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    run_thread_ranks(ranks, {20.0}, [&](World& world) {
      Bench bench(world, {.cp = ranks}, Dtype::kF64);
      MicroBatch batch = make_micro_batch(bench.ctx, samples, 0);
      auto tokens = bench.ctx.download<std::int32_t>(batch.tokens);
      auto marks = bench.ctx.download<float>(batch.field(kMarks).tensor);
      ASSERT_EQ(marks.size(), tokens.size());
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        EXPECT_EQ(marks[i], static_cast<float>(10 * tokens[i]));
      }
      EXPECT_THAT(bench.ctx.download<double>(batch.field(kMargin).tensor), ElementsAre(0.5, 100.5));
      const BatchField& source = batch.field(kSource);
      auto values = bench.ctx.download<std::int32_t>(source.tensor);
      ASSERT_EQ(static_cast<std::int64_t>(values.size()), source.layout.tokens);
      for (const DocumentPiece& piece : source.layout.own.pieces()) {
        for (std::int32_t i = 0; i < piece.count; ++i) {
          EXPECT_EQ(values[static_cast<std::size_t>(piece.row + i)],
                    100 * piece.sample + 1000 + piece.begin + i);
        }
      }
      if (ranks == 1) {
        EXPECT_EQ(source.layout.tokens, 11);
      }
    });
  }
}

// The second of two ranks gets no sample, but its batch has the fields.
TEST(BatchFields, AreThereWithoutSamples) {
  const std::vector<TokenSample> samples = {sample_of(0, 4, 3)};
  run_thread_ranks(2, {20.0}, [&](World& world) {
    Bench bench(world, {.dp = 2}, Dtype::kF64);
    std::vector<MicroBatch> batches = rank_micro_batches(bench.ctx, samples, 1);
    ASSERT_EQ(batches.size(), 1u);
    ASSERT_EQ(batches[0].fields.size(), 3u);
    bool has = world.rank() == 0;
    EXPECT_EQ(batches[0].field(kMarks).tensor.numel(), has ? 4 : 0);
    EXPECT_EQ(batches[0].field(kMargin).tensor.numel(), has ? 1 : 0);
    EXPECT_EQ(batches[0].field(kSource).layout.tokens, has ? 3 : 0);
  });
}

TEST(BatchFields, ThatAreMissingAreNamed) {
  Bench bench(Dtype::kF64);
  const std::vector<TokenSample> samples = {sample_of(0, 4, 3)};
  MicroBatch batch = make_micro_batch(bench.ctx, samples, 0);
  EXPECT_EQ(batch.find({"advantages"}), nullptr);
  expect_error(ErrorKind::kInput, {"no field 'advantages'"}, [&] { batch.field({"advantages"}); });
  std::vector<TokenSample> unlike = {sample_of(0, 4, 3), sample_of(9, 4, 3)};
  std::get<std::vector<float>>(unlike[1].fields[0].values).pop_back();
  expect_error(ErrorKind::kInternal, {"marks", "3 values of 4"},
               [&] { make_micro_batch(bench.ctx, unlike, 0); });
}

// Tensors that CUDA graph replays copy: tokens, targets, those of each MTP module, the layout and
// every field.
TEST(BatchFields, AreVisitedWithTheOtherTensors) {
  Bench bench(Dtype::kF64);
  const std::vector<TokenSample> samples = {sample_of(0, 4, 3)};
  MicroBatch from = make_micro_batch(bench.ctx, samples, 0, {1, 0.5}), to = from;
  std::vector<const void*> seen;
  for_tensors(from, to, [&](const Tensor& a, Tensor& b) {
    EXPECT_EQ(a.view().data, b.view().data);
    seen.push_back(a.view().data);
  });
  for (const BatchField& field : from.fields) {
    EXPECT_EQ(std::ranges::count(seen, field.tensor.view().data), 1);
  }
  EXPECT_EQ(std::ranges::count(seen, from.field(kSource).layout.positions.view().data), 1);
  EXPECT_EQ(std::ranges::count(seen, from.mtp[0].targets.weights.view().data), 1);
}

}  // namespace
}  // namespace bev::test
