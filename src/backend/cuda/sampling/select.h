// Work of a selection of tokens, shared by its kernels: how rows are cut into slices, and the
// scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bev {
class CudaQueue;
struct LogitEdit;
struct SamplingRule;
struct SelectArgs;
struct TopLogitsArgs;
struct Stream;
}  // namespace bev

namespace bev::cuda {

struct Extent;
struct RowPlan;

// Device pointers, by row; a row has `parts` slices, each of a block.
struct Selection {
  const float* logits;
  const SamplingRule* rules;
  const LogitEdit* edits;
  const std::int32_t* counts;
  std::int64_t counts_stride;
  std::int32_t *tokens, *status;
  int rows, columns, parts, slice;  // slice: columns of a part
  int bits;                         // of the largest weight

  float* edited;                    // [rows, columns] of rows whose logits are edited
  Extent* extents;                  // [rows, parts]
  unsigned long long* slice_sums;   // [rows, parts]
  unsigned long long* bin_weights;  // [rows, kBins]
  unsigned int* bin_counts;         // [rows, kBins]
  RowPlan* plans;                   // [rows]
  int* listed;                      // [rows]
  unsigned long long* lists;        // [rows, kMostListed]
};

// Entries that a row's list of candidates holds.
constexpr int kMostListed = 8192;

// select.cu
void select(const Stream& stream, const SelectArgs& args);
// select_rows.cu: the passes after the first, over rows that are not greedy.
void choose_by_rules(const Selection& work, CudaQueue& queue);
// top_logits.cu
void top_logits(const Stream& stream, const TopLogitsArgs& args);

}  // namespace bev::cuda
