// Muon: momentum orthogonalised by the Newton-Schulz iteration (Jordan et al., 2024), as in
// NVIDIA's emerging-optimizers.
#include <algorithm>
#include <cmath>

#include "kernels/optim.h"
#include "optim/matrix_rule.h"
#include "optim/newton_schulz.h"

namespace bev {

namespace {

class Muon final : public MatrixRule {
 public:
  explicit Muon(const MuonConfig& config) : config_(config) {}

  Dtype dtype(Dtype model) const override {
    const bool narrow = config_.matmul_precision == MatmulPrecision::kMedium;
    return model == Dtype::kF64 ? Dtype::kF64 : narrow ? Dtype::kBf16 : Dtype::kF32;
  }
  bool splits_fused() const override { return config_.split_qkv; }
  void set_momentum(DirectionArgs& direction) const override {
    direction.momentum = config_.momentum;
    direction.nesterov = config_.nesterov;
  }

  double factor(const MatrixBlock& block) const override {
    const bool part = config_.tp_mode == MuonTpMode::kBlockwise;
    const auto rows = static_cast<double>(part ? block.local_shape[0] : block.rows);
    const auto columns = static_cast<double>(part ? block.local_shape[1] : block.columns);
    return config_.extra_scale_factor * shape_factor(rows, columns);
  }

  void update(Context& ctx, const OwnedMatrix& matrix, const View& local) const override {
    const NewtonSchulz rule{config_.coefficient_type, config_.num_ns_steps};
    const int split = matrix.block.split;
    if (config_.tp_mode == MuonTpMode::kBlockwise) {
      return orthogonalise(ctx, rule, local, matrix.tensor, -1);
    }
    if (config_.tp_mode == MuonTpMode::kDistributed) {
      return orthogonalise(ctx, rule, local, matrix.tensor, split);
    }
    WholeMatrix whole = gather_whole(ctx, matrix.block, matrix.tensor, local);
    orthogonalise(ctx, rule, whole.view, matrix.tensor, -1);
    take_part(ctx, matrix.block, matrix.tensor, whole.view, local);
  }

 private:
  double shape_factor(double rows, double columns) const {
    switch (config_.scale_mode) {
      case MuonScaleMode::kUnitRmsNorm:
        return std::sqrt(rows / columns);
      case MuonScaleMode::kShapeScaling:
        return std::sqrt(std::max(1.0, rows / columns));
      case MuonScaleMode::kSpectral:
        break;
    }
    return std::sqrt(std::max(rows, columns));
  }

  MuonConfig config_;
};

}  // namespace

std::unique_ptr<MatrixRule> make_muon(const OptimConfig& config) {
  return std::make_unique<Muon>(config.muon);
}

}  // namespace bev
