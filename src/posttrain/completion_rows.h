// The tokens of a micro-batch on the host, completion by completion: where objectives of
// log-probabilities compute their gradients.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/tape.h"
#include "models/model.h"
#include "ops/micro_batch.h"

namespace bev {

// log p of the targets of a micro-batch, [T] in the wide dtype, from the outputs of the last stage;
// 0 where there is no target.
Var target_log_probs(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                     std::span<const Var> outputs);

// Tokens [begin, begin + length) of a micro-batch, as gathered below.
struct CompletionRow {
  std::size_t begin = 0, length = 0;
};

// Maps between the rows of this rank and the tokens of the whole micro-batch in the order of the
// samples, which context-parallel ranks share.
class CompletionRows {
 public:
  CompletionRows(Context& ctx, const SequenceLayout& layout);

  // The documents, in order.
  const std::vector<CompletionRow>& rows() const { return rows_; }
  std::size_t tokens() const { return tokens_; }
  // Values of all tokens, from those of this rank ([T, columns] of any type). Collective over cp.
  std::vector<double> gather(const View& own, std::int64_t columns = 1) const;
  // Values of this rank's tokens.
  std::vector<double> own(std::span<const double> all, std::int64_t columns = 1) const;

 private:
  Context& ctx_;
  const SequenceLayout& layout_;
  std::vector<CompletionRow> rows_;
  std::size_t tokens_ = 0;
};

// Sums of the values of each row where the weight is not 0.
std::vector<double> row_sums(std::span<const CompletionRow> rows, std::span<const double> values,
                             std::span<const double> weights);

// A tensor of one f64 number per sample of the micro-batch; replaces a field of that name.
void set_sample_field(Context& ctx, MicroBatch& batch, FieldId id, std::span<const double> values);
// The numbers of such a field; empty if there is none.
std::vector<double> sample_field(const Context& ctx, const MicroBatch& batch, FieldId id);

}  // namespace bev
