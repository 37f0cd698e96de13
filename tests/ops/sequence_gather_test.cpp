#include "ops/sequence_gather.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/op_rig.h"

namespace bev::test {
namespace {

// Packed documents, a sample without tokens, and samples with fewer tokens than there are chunks.
const std::vector<SampleShape> kSamples = {{{3, 4}}, {{}}, {{5}}, {{1, 1}}, {{1}}};
constexpr std::int64_t kTokens = 15, kColumns = 2;

// Rows of the tokens of a rank, selected from the rows of all samples.
std::vector<double> rows_of(const TokenSet& tokens, const std::vector<double>& all) {
  const std::int32_t begins[] = {0, 7, 7, 12, 14};
  std::vector<double> rows;
  for (const DocumentPiece& piece : tokens.pieces()) {
    auto first = all.begin() + kColumns * (begins[piece.sample] + piece.sample_begin);
    rows.insert(rows.end(), first, first + kColumns * piece.count);
  }
  return rows;
}

TEST(SequenceGather, EveryRankHasAllTokensInOrderAndKeepsItsOwn) {
  std::vector<double> x = case_numbers(kTokens * kColumns, 3);
  std::vector<double> dy = case_numbers(kTokens * kColumns, 4);
  for (int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    run_thread_ranks(ranks, {20.0}, [&](World& world) {
      Bench bench(world, {.cp = ranks}, Dtype::kF64);
      SequenceLayout layout = SequenceLayout::make(bench.ctx, kSamples, 0);
      Tape tape;
      bench.ctx.tape = &tape;
      std::vector<double> mine = rows_of(layout.own, x);
      Var own = tape.track(bench.tensor({layout.tokens, kColumns}, mine), batch_placement());
      GradSlot in(own);
      Var whole = gather_sequence(bench.ctx, own, layout);
      EXPECT_EQ(values_of(whole.tensor), x);
      Var again = own_sequence(bench.ctx, whole, layout);
      EXPECT_EQ(values_of(again.tensor), mine);
      EXPECT_EQ(again.placement, own.placement);
      tape.add_gradient(bench.ctx, GradSlot(again),
                        bench.tensor({layout.tokens, kColumns}, rows_of(layout.own, dy)),
                        batch_placement());
      tape.backward(bench.ctx);
      EXPECT_EQ(values_of(tape.take_gradient(in.id)), rows_of(layout.own, dy));
    });
  }
}

TEST(SequenceGather, NamesAnInputOfAnotherPlacement) {
  Bench bench(Dtype::kF64);
  SequenceLayout layout = SequenceLayout::make(bench.ctx, kSamples, 0);
  Tensor x = bench.tensor({kTokens, kColumns}, case_numbers(kTokens * kColumns, 3));
  expect_error(ErrorKind::kInternal, {"gather_sequence", "cut over cp"}, [&] {
    gather_sequence(bench.ctx, {x, Placement(), -1, nullptr}, layout);
  });
  expect_error(ErrorKind::kInternal, {"own_sequence", "replicated over cp"}, [&] {
    own_sequence(bench.ctx, {x, batch_placement(), -1, nullptr}, layout);
  });
}

}  // namespace
}  // namespace bev::test
