// Owns the memory of a model's parameters and gradients, and shares it out over the ranks that hold
// the same parameters (dp x cp), as far as the strategy says:
//
//   strategy             values    gradients   optimizer ranges          ZeRO
//   no_shard             whole     whole       all                       0
//   optim                whole     whole       this rank's part          1
//   optim_grads          whole     part        part                      2
//   optim_grads_params   part      part        part                      3
//
// The work is done by its parts: ShardPlan (who owns what), GradientSums (how gradients are
// summed), UnitCache (how sharded weights are gathered for use), PackedWeights (as products take
// them), QuantizedWeights and AmaxHistory (their 8-bit forms, and delayed scales).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "autograd/context.h"
#include "optim/optimizer.h"
#include "parallel/amax_history.h"
#include "parallel/gradient_squares.h"
#include "parallel/gradient_sums.h"
#include "parallel/packed_weights.h"
#include "parallel/quantized_weights.h"
#include "parallel/shard_plan.h"
#include "parallel/unit_cache.h"

namespace bev {

// Some elements of a flattened local parameter, in this rank's memory.
struct ValueRange {
  Range range;
  View value;  // flat
};

class ParamStore final : public Weights, public Gradients {
 public:
  // Materialises the parameters: sets their index and local shape. They must outlive the store.
  ParamStore(std::vector<Param*> params, const Mesh& mesh, Arena& arena, const Kernels& kernels,
             Stream stream, const StoreOptions& options);
  ParamStore(const ParamStore&) = delete;
  ParamStore& operator=(const ParamStore&) = delete;

  const std::vector<Param*>& params() const { return plan_.params(); }
  const ShardPlan& plan() const { return plan_; }
  const StoreOptions& options() const { return tools_.options; }

  // Initial values by global element index: any layout draws the same weights.
  void initialise(std::uint64_t seed);

  WeightLease use(const Param& param) override;
  PackedFactor* packed(const Param& param, const GemmArgs& product, std::int64_t uses) override {
    return packed_.use(param, product, uses);
  }
  Quantized quantized(const Param& param) override;
  AmaxSlot amax(const Param& param, Fp8Role role) override { return amaxes_.slot(param, role); }
  GradSink sink(const Param& param, const Placement& placement) override;
  void done(const Param& param, GradSink sink) override;

  // A new global batch: the next gradient of each parameter overwrites. Between here and
  // finish_gradients every rank of dp x cp computes as many micro-batches, in the same order.
  // Ops may add squares of gradients to *squares, which add_gradient_squares will get; null: not.
  void begin_step(std::int64_t micro_batches, double* squares = nullptr);
  // All micro-batches are done: sums what is partial over tp, over data-parallel ranks and over the
  // holders of a tied embedding. Then every rank has the gradient of what it owns.
  void finish_gradients();
  // *sum (f64, on the device) += the squares of this rank's share of the gradient, without those
  // that ops have added: over all ranks every parameter counts once.
  void add_gradient_squares(double* sum);
  // *count likewise += the zeros in it.
  void count_zero_gradients(double* count);
  // *sum likewise += the squares of parameters that are frozen: the optimizer has those of the
  // rest.
  void add_frozen_squares(double* sum) const;
  // After an update: every rank gets the values that others updated. With overlap they may still be
  // on their way; use() waits for what it needs.
  void gather_values();
  // A recorded step has updated: what is derived from values is to be made anew.
  void values_changed();

  // For steps that are recorded in parts, each of which is to end what it began and to find nothing
  // that another has left: between parts of one step, after a micro-batch.
  void pause();
  // Whether such a step gathers values where it begins, for the one before: at the end of that one
  // nothing would run beside.
  bool gathers_first() const { return values_.whole() && options().overlap_gather; }

  AmaxHistory& amaxes() { return amaxes_; }

  // Of this rank; their values may be written between finish_gradients and gather_values.
  std::vector<OptimRange> optim_ranges() const;

  // What this rank updates of a parameter. It does not change between two updates.
  ValueRange owned_value(const Param& param) const;
  // All that it keeps, to be written between two steps.
  ValueRange kept_value(const Param& param);

  // The whole local parameter (this rank's tp part): gathered when sharded.
  // Collective over the shards when the values are sharded.
  WeightLease local_value(const Param& param);
  // The whole local gradient of a parameter that trains, after finish_gradients; collective over
  // the shards when sharded.
  WeightLease local_gradient(const Param& param);
  // Writes a whole local parameter into the store; each rank keeps its part.
  void set_local_value(const Param& param, const View& value);

 private:
  void gather_bucket(int bucket);
  WeightLease gather(const FlatBuffer& buffer, const Param& param, const char* tag) const;
  void forget_gathers();
  // Whether this rank's share of a parameter takes part in sums over the model.
  bool counts(const Param& param) const;

  StoreTools tools_;
  ShardPlan plan_;
  FlatBuffer values_;
  std::unique_ptr<GradientSums> gradients_;   // none for inference
  std::unique_ptr<GradientSquares> squares_;  // none for inference
  UnitCache units_;                           // of sharded values
  PackedWeights packed_;
  AmaxHistory amaxes_;
  QuantizedWeights quantized_;
  std::vector<std::vector<Work>> gathers_;  // of whole values, by bucket, after an update
  bool gather_due_ = false;  // the next step that is recorded does it, or the next use
};

}  // namespace bev
