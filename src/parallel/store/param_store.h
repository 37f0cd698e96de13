// Owns the memory of a model's parameters and gradients, sharded over the ranks that hold the same
// parameters (dp x cp) as the ZeRO stage says:
//
//   strategy             values    gradients   optimizer ranges          ZeRO
//   no_shard             whole     whole       all                       0
//   optim                whole     whole       this rank's shard         1
//   optim_grads          whole     shard       shard                     2
//   optim_grads_params   shard     shard       shard                     3
//
// It delegates to ShardPlan (ownership), GradientSums (gradient reduction), FsdpUnitCache
// (all-gather of FSDP units), PackedWeights (packed layouts for GEMMs), QuantizedWeights (FP8
// weights) and AmaxHistory (delayed scaling).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "autograd/context.h"
#include "optim/optimizer.h"
#include "parallel/store/amax_history.h"
#include "parallel/store/fsdp_unit_cache.h"
#include "parallel/store/gradient_squares.h"
#include "parallel/store/gradient_sums.h"
#include "parallel/store/packed_weights.h"
#include "parallel/store/quantized_weights.h"
#include "parallel/store/shard_plan.h"

namespace bev {

// A range of a flattened local parameter, in this rank's memory.
struct ValueRange {
  Range range;
  View value;  // flat
};

class ParamStore final : public Weights, public Gradients {
 public:
  // Assigns each parameter its index and local shape. The parameters must outlive the store.
  ParamStore(std::vector<Param*> params, const Mesh& mesh, Arena& arena, const Kernels& kernels,
             Stream stream, const StoreOptions& options);
  ParamStore(const ParamStore&) = delete;
  ParamStore& operator=(const ParamStore&) = delete;

  const std::vector<Param*>& params() const { return plan_.params(); }
  const ShardPlan& plan() const { return plan_; }
  const StoreOptions& options() const { return tools_.options; }

  // Draws initial values by global element index, so that they do not depend on the layout.
  void initialise(std::uint64_t seed);

  WeightLease use(const Param& param) override;
  // A weight in NF4 is dequantised at every use.
  PackedOperand* packed(const Param& param, const GemmArgs& gemm, std::int64_t uses) override {
    return param.format == ParamFormat::kNf4 ? nullptr : packed_.use(param, gemm, uses);
  }
  Quantized quantized(const Param& param) override;
  Nf4Lease nf4(const Param& param) override;
  AmaxSlot amax(const Param& param, Fp8Role role) override { return amaxes_.slot(param, role); }
  GradSink sink(const Param& param, const Placement& placement) override;
  void done(const Param& param, GradSink sink) override;

  // Begins a global batch: the next gradient of each parameter overwrites. Until finish_gradients()
  // every rank of dp x cp must compute the same number of micro-batches in the same order. Ops may
  // add squares of gradients to *squares, which must be the sum given to add_gradient_squares();
  // null: they do not.
  void begin_step(std::int64_t micro_batches, double* squares = nullptr);
  // Called after the last micro-batch: reduces gradients over tp (partial ones), over data-parallel
  // ranks and over the holders of a tied embedding. Every rank then has the gradients it owns.
  void finish_gradients();
  // *sum (f64, on the device) += the squares of this rank's share of the gradient, except squares
  // that ops have already added. Over all ranks every parameter counts once.
  void add_gradient_squares(double* sum);
  // *count (f64, on the device) += the number of zeros in this rank's share of the gradient.
  void count_zero_gradients(double* count);
  // *sum (f64, on the device) += the squares of frozen parameters. Those of trained parameters come
  // from the optimizer.
  void add_frozen_squares(double* sum);
  // All-gathers the updated values. With overlap the gathers may still be running on return; use()
  // waits for the ones it needs.
  void gather_values();
  // Called after a step that ran as a CUDA graph: invalidates everything derived from the values.
  void values_changed();

  // Weights that are sharded stay gathered from their first use until they are released, while no
  // value changes.
  void hold_gathered() { units_.hold(); }
  void release_gathered() { units_.release(); }
  // Called between the parts of a step that is captured as several CUDA graphs, after a
  // micro-batch: completes all pending communication, so that no part depends on work that another
  // has begun.
  void pause();
  // Whether a captured step all-gathers the values at its start, for the step before. At the end of
  // that step the gather could not overlap with compute.
  bool gathers_first() const { return values_.whole() && options().overlap_gather; }

  AmaxHistory& amaxes() { return amaxes_; }

  // Optimizer ranges of this rank. Their values may be written between finish_gradients() and
  // gather_values().
  std::vector<OptimRange> optim_ranges() const;
  // All trained parameters, with the ranges of all ranks that share their updates.
  std::vector<SharedParam> shared_params() const;

  // The shard of a parameter that this rank updates. It does not change between two updates.
  ValueRange owned_value(const Param& param) const;
  // All that this rank stores of a parameter, bytes if it is quantised; may be written between two
  // steps.
  ValueRange kept_value(const Param& param);
  // Stores this rank's part of a parameter in NF4.
  void set_nf4(const Param& param, std::span<const std::byte> part);

  // The whole local parameter (this rank's tp part). Collective over the shards if the values are
  // sharded.
  WeightLease local_value(const Param& param);
  // The whole local gradient of a trained parameter, after finish_gradients(). Collective over the
  // shards if gradients are sharded.
  WeightLease local_gradient(const Param& param);
  // Writes a whole local parameter that is not quantised; each rank stores its shard.
  void set_local_value(const Param& param, const View& value);

 private:
  // The whole local parameter as it is stored.
  WeightLease stored_value(const Param& param);
  void initialise_nf4(const Param& param, std::uint64_t key);
  void draw_on_host(const Param& param, std::uint64_t key, const Tensor& to);
  void gather_bucket(int bucket);
  WeightLease gather(const FlatBuffer& buffer, const Param& param, const char* tag) const;
  void forget_gathers();
  // Whether this rank's share of a parameter counts in sums over the model.
  bool counts(const Param& param) const;

  StoreTools tools_;
  ShardPlan plan_;
  FlatBuffer values_;
  std::unique_ptr<GradientSums> gradients_;   // null for inference
  std::unique_ptr<GradientSquares> squares_;  // null for inference
  FsdpUnitCache units_;                       // if values are sharded
  PackedWeights packed_;
  AmaxHistory amaxes_;
  QuantizedWeights quantized_;
  std::vector<std::vector<Work>> gathers_;  // all-gathers after an update, by bucket
  bool gather_due_ = false;  // the next captured step, or the next use, gathers the values
};

}  // namespace bev
