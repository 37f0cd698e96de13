#include "posttrain/completion_rows.h"

#include <algorithm>

#include "ops/collective.h"
#include "ops/token_log_probs.h"

namespace bev {

namespace {

// The set of all tokens; with one context-parallel rank these are its own.
const TokenSet& whole_set(const Context& ctx, const SequenceLayout& layout) {
  return ctx.mesh.cp().size() > 1 ? layout.all_tokens() : layout.own;
}

std::vector<double> download_doubles(const Context& ctx, const View& view) {
  switch (view.dtype) {
    case Dtype::kF64:
      return ctx.download<double>(view);
    case Dtype::kI32: {
      std::vector<std::int32_t> values = ctx.download<std::int32_t>(view);
      return {values.begin(), values.end()};
    }
    default: {
      std::vector<float> values = ctx.download<float>(view);
      return {values.begin(), values.end()};
    }
  }
}

}  // namespace

Var target_log_probs(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                     std::span<const Var> outputs) {
  Var hidden = enter_tensor_parallel(ctx, outputs[0], batch.layout.tokens);
  return token_log_probs(ctx, hidden, batch.targets.targets, stage.head());
}

CompletionRows::CompletionRows(Context& ctx, const SequenceLayout& layout)
    : ctx_(ctx), layout_(layout) {
  for (const DocumentPiece& piece : whole_set(ctx, layout).pieces()) {
    rows_.push_back({static_cast<std::size_t>(piece.row), static_cast<std::size_t>(piece.count)});
  }
  tokens_ = static_cast<std::size_t>(whole_set(ctx, layout).tokens());
}

std::vector<double> CompletionRows::gather(const View& own, std::int64_t columns) const {
  std::vector<double> mine = download_doubles(ctx_, own);
  Group& cp = ctx_.mesh.cp();
  if (cp.size() == 1) return mine;
  // Others add their tokens to zeros, which is exact.
  std::vector<double> all(tokens_ * static_cast<std::size_t>(columns));
  for (const RowCopy& copy : row_copies(layout_.own, whole_set(ctx_, layout_))) {
    std::copy_n(mine.begin() + copy.from * columns, copy.count * columns,
                all.begin() + copy.to * columns);
  }
  cp.host()
      .all_reduce({all.data(), Dtype::kF64, {std::ssize(all)}}, Reduction::kSum, "completions")
      .wait();
  return all;
}

std::vector<double> CompletionRows::own(std::span<const double> all, std::int64_t columns) const {
  std::vector<double> mine(static_cast<std::size_t>(layout_.tokens * columns));
  for (const RowCopy& copy : row_copies(layout_.own, whole_set(ctx_, layout_))) {
    std::copy_n(all.begin() + copy.to * columns, copy.count * columns,
                mine.begin() + copy.from * columns);
  }
  return mine;
}

std::vector<double> row_sums(std::span<const CompletionRow> rows, std::span<const double> values,
                             std::span<const double> weights) {
  std::vector<double> sums;
  for (const CompletionRow& row : rows) {
    double sum = 0;
    for (std::size_t t = row.begin; t < row.begin + row.length; ++t) {
      if (weights[t] != 0) sum += values[t];
    }
    sums.push_back(sum);
  }
  return sums;
}

void set_sample_field(Context& ctx, MicroBatch& batch, FieldId id, std::span<const double> values) {
  std::erase_if(batch.fields, [&](const BatchField& field) { return field.id == id; });
  batch.fields.push_back({id, FieldRows::kSamples, ctx.upload<double>(values, "batch"), {}});
}

std::vector<double> sample_field(const Context& ctx, const MicroBatch& batch, FieldId id) {
  const BatchField* field = batch.find(id);
  return field != nullptr ? ctx.download<double>(field->tensor) : std::vector<double>();
}

}  // namespace bev
