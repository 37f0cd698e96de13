// What every op gets first: the rank's kernels, memory, mesh, parameters, and the tape if it
// records.
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

class OffloadPass;
class Partner;
class Tape;
class Trace;
class WeightWork;
struct RouterStatistics;

// Collects the first result that is not finite while a bad step is run again.
struct FiniteProbe {
  bool found = false;
  bool in_backward = false;  // set by the tape
  std::int64_t stage = 0;    // set by the pipeline
  std::string message;       // "layer 3, op attention: result [..] holds NaN or Inf"
  bool found_in_backward = false;
  std::int64_t found_stage = 0;
};

struct Context {
  const Kernels& kernels;
  Stream stream;
  Arena& arena;   // of what a step computes
  Arena& inputs;  // of what comes from the host: it stays while recorded steps use the arena
  const Mesh& mesh;
  Weights& weights;
  Gradients& grads;
  const StepState* step;      // device address
  Dtype dtype = Dtype::kF32;  // of activations and weights

  Tape* tape = nullptr;  // nullptr: nothing is recorded
  WeightWork* weight_work =
      nullptr;                     // collects weight-gradient work for later; nullptr: done at once
  Partner* partner = nullptr;      // runs while exchanges are under way; nullptr: nobody does
  OffloadPass* offload = nullptr;  // takes what the forward keeps to the host; nullptr: it stays
  std::int64_t layer = -1;  // global number of the layer that runs, for random numbers and messages
  bool training = false;    // dropout acts
  FiniteProbe* probe = nullptr;  // every result is checked (waits for the device); nullptr: none is
  Trace* trace = nullptr;        // what runs is recorded; nullptr: nothing is
  // Where backwards add up what routers chose; nullptr: nowhere.
  const RouterStatistics* routers = nullptr;
  // Where exchanges of a fixed size count the rows that did not fit (f64, device); nullptr: all
  // exchanges have the size they need.
  double* lost_rows = nullptr;

  Tensor allocate(Dtype of, const Shape& shape, const char* tag) const {
    return Tensor(arena, of, shape, tag);
  }
  // Host values as a tensor [count].
  Tensor upload(Dtype of, std::int64_t count, const void* values, const char* tag) const;
  template <class T>
  Tensor upload(std::span<const T> values, const char* tag) const {
    return upload(DtypeOf<T>::value, static_cast<std::int64_t>(values.size()), values.data(), tag);
  }
  // Waits for the device.
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
  // With a probe: records op, layer and tensor of the first bad value.
  void check(std::string_view op, std::string_view what, const View& view) const;
};

}  // namespace bev
