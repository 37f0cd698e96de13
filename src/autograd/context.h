// First argument of every op: the rank's kernels, memory, mesh, parameters, and the autograd tape
// if it records.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/param.h"
#include "comm/mesh.h"
#include "kernels/kernels.h"
#include "tensor/step_state.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace bev {

class MetricBlock;
class OffloadPass;
class InterleavedBackward;
class Tape;
class Trace;
struct AdapterRows;
class DeferredWgrad;
struct RouterStatistics;
struct SequenceLayout;

struct Context;

// Receives the results of ops, and gradients, while a step is run apart.
class TensorSink {
 public:
  virtual ~TensorSink() = default;
  virtual void see(const Context& ctx, std::string_view op, bool in_backward, const View& view) = 0;
};

// Finds the first non-finite result while a bad step is run again.
struct FiniteProbe {
  bool found = false;
  bool in_backward = false;  // set by the tape
  std::int64_t stage = 0;    // set by the pipeline executor
  std::string message;       // "layer 3, op attention: result [..] holds NaN or Inf"
  bool found_in_backward = false;
  std::int64_t found_stage = 0;
  TensorSink* sink = nullptr;  // gets all tensors, which are not checked then; null: none
};

struct Context {
  const Kernels& kernels;
  Stream stream;
  Arena& arena;   // tensors computed in a step
  Arena& inputs;  // tensors uploaded by the host; they stay alive while CUDA graphs reuse the arena
  const Mesh& mesh;
  Weights& weights;
  Gradients& grads;
  const StepState* step;      // device address
  Dtype dtype = Dtype::kF32;  // of activations and weights

  Tape* tape = nullptr;  // nullptr: nothing is recorded
  // Set to true by every op whose output has a gradient, recorded or not; nullptr: nobody asks.
  bool* trains = nullptr;
  DeferredWgrad* deferred_wgrad =
      nullptr;                             // collects wgrad work to run later; nullptr: run at once
  InterleavedBackward* partner = nullptr;  // runs while a collective is in flight; nullptr: none
  OffloadPass* offload = nullptr;          // offloads saved activations to the host; nullptr: none
  std::int64_t layer = -1;  // global index of the current layer, for random numbers and messages
  bool training = false;    // enables dropout
  bool adapters = true;     // false: the model computes without its adapters
  // Rows of the batch to which each adapter applies; nullptr: all apply to all rows.
  const AdapterRows* adapter_rows = nullptr;
  // Layout of the micro-batch, for random numbers within linear layers; set by the layer.
  const SequenceLayout* layout = nullptr;
  FiniteProbe* probe = nullptr;  // checks every result (synchronises with the device); nullptr: off
  Trace* trace = nullptr;        // records spans; nullptr: off
  const MetricBlock* metrics = nullptr;  // sums of the training step; nullptr: none
  // [layers, heads] in the wide dtype: the largest attention logits of the step so far, which
  // attention raises; empty: nobody asks.
  View max_logits = {};
  // Accumulators of the routers' choices, updated in the backward; nullptr: none.
  const RouterStatistics* routers = nullptr;
  // Counter of rows dropped by fixed-size expert exchanges (f64, device); nullptr: all exchanges
  // have the exact size.
  double* lost_rows = nullptr;

  Tensor allocate(Dtype of, const Shape& shape, const char* tag) const {
    return Tensor(arena, of, shape, tag);
  }
  // Uploads host values as a tensor [count].
  Tensor upload(Dtype of, std::int64_t count, const void* values, const char* tag) const;
  template <class T>
  Tensor upload(std::span<const T> values, const char* tag) const {
    return upload(DtypeOf<T>::value, static_cast<std::int64_t>(values.size()), values.data(), tag);
  }
  // Synchronises with the device.
  void download(const View& view, void* values) const;
  template <class T>
  std::vector<T> download(const View& view) const {
    BEV_CHECK(DtypeOf<T>::value == view.dtype, ErrorKind::kInternal, "download: is ",
              name_of(view.dtype), ", wanted as ", name_of(DtypeOf<T>::value));
    std::vector<T> out(static_cast<std::size_t>(view.numel()));
    download(view, out.data());
    return out;
  }
  Dtype wide() const { return wide_of(dtype); }
  // Where an op adds to the metric of this name (f64, on the device), given the placement of the
  // values that it sums. nullptr: the metric is not shown, or another rank with the same values
  // counts them. Ops that are recomputed in the backward are not counted again.
  double* metric(std::string_view name, const Placement& placement) const;
  // With a probe: records op, layer and tensor of the first non-finite value.
  void check(std::string_view op, std::string_view what, const View& view) const;
};

// The parameter that ops use for this one: its trained copy where adapters apply.
inline const Param& in_use(const Context& ctx, const Param& param) {
  return ctx.adapters && param.trained_copy != nullptr ? *param.trained_copy : param;
}

}  // namespace bev
