// State space duality (SSD), the recurrence of Mamba-2, for head h with P dims, state S [N, P] and
// group g of B and C:
//
//   dt_t = clamp(softplus(raw_t + dt_bias))   A = -exp(A_log)
//   S_t = exp(dt_t A) S_(t-1) + B_t^T (dt_t x_t)        y_t = C_t S_t + D x_t
//
// Chunked for training and prefill, where a chunk is a few matrix products: chunk_states, then
// pass_states from chunk to chunk, then forward. The backward goes the other way. Token by token
// (step) for decoding. Decays, states and sums are in the accumulate type.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "base/divide.h"
#include "tensor/recurrent_run.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

struct SsdShape {
  std::span<const RecurrentRun> runs;
  // Rows in order at which documents begin: within a run the state is zeros there again.
  std::span<const std::int64_t> starts = {};
  std::int64_t chunk = 64;  // tokens; the last chunk of a run may be shorter
  std::int64_t heads = 0, head_size = 0, state_size = 0;  // H, P, N
  std::int64_t groups = 1;                                // G in a row
  // Head h uses group (first_head + h) / heads_per_group of the row.
  std::int64_t first_head = 0, heads_per_group = 1;
  double dt_min = 0, dt_max = std::numeric_limits<double>::infinity();

  std::int64_t state_elements() const { return heads * state_size * head_size; }
  std::int64_t columns() const { return heads * head_size + 2 * groups * state_size; }
};

inline std::int64_t chunk_count(const SsdShape& shape) {
  std::int64_t count = 0;
  for (const RecurrentRun& run : shape.runs) count += ceil_div(run.count, shape.chunk);
  return count;
}

struct SsdInputs {
  View xbc;                // rows x | B | C [T, H P + 2 G N]
  View dt;                 // raw [T, H]
  View dt_bias, a_log, d;  // [H], accumulate type
};

// states [chunks, H, N, P]: what the tokens of each chunk add to the state after it; decays
// [chunks, H]: log of the factor of the state before it.
struct SsdChunkStatesArgs {
  SsdShape shape;
  SsdInputs in;
  View states, decays;
};
// The same for gradients: what the outputs of a chunk add to the gradient of the state before it.
struct SsdChunkGradientsArgs {
  SsdShape shape;
  SsdInputs in;
  View dy;
  View states;
};

// For each run over entries [row, row + count) of `order`, which are indices of chunks:
// S = entering; for each chunk, states[chunk], S = S, exp(decay) S + states[chunk]; leaving = S.
struct SsdPassArgs {
  std::int64_t heads = 0, head_elements = 0;  // N P
  std::span<const std::int64_t> order;
  std::span<const RecurrentRun> runs;
  View states, decays;
  bool keep = false;  // states are left as they are
  StateRows entering, leaving;
  View totals = {};  // [R, H]: sums of the decays of a run, at its leaving row; empty: not wanted
};

// y [T, H P], dtype of x; states: those before each chunk.
struct SsdForwardArgs {
  SsdShape shape;
  SsdInputs in;
  View states;
  View y;
};
struct SsdBackwardArgs {
  SsdShape shape;
  SsdInputs in;
  View dy;
  View states, dstates;       // state before each chunk, gradient of the state after it
  View dxbc, ddt;             // dtype of x
  View ddt_bias, da_log, dd;  // any floating dtype = beta * old + new; empty: not wanted
  double dt_bias_beta = 0, a_log_beta = 0, d_beta = 0;
};

// Token by token, from and to the states of the runs.
struct SsdStepArgs {
  SsdShape shape;
  SsdInputs in;
  StateRows states;
  View y;
};

struct SsdKernels {
  void (*chunk_states)(const Stream&, const SsdChunkStatesArgs&);
  void (*chunk_gradients)(const Stream&, const SsdChunkGradientsArgs&);
  void (*pass_states)(const Stream&, const SsdPassArgs&);
  void (*forward)(const Stream&, const SsdForwardArgs&);
  void (*backward)(const Stream&, const SsdBackwardArgs&);
  void (*step)(const Stream&, const SsdStepArgs&);
};

}  // namespace bev
