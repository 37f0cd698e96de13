// The kernels of a backend as ops see them: one function table per topic. The tables are only
// declared here and a source includes the headers of those that it uses, so that a change of one
// recompiles few sources (tools/check_fanout.sh).
#pragma once

#include <type_traits>

namespace bev {

struct Stream;
struct View;
struct ActivationKernels;
struct AttentionKernels;
struct DeltaRuleKernels;
struct DeviceKernels;
struct ElementwiseKernels;
struct EmbeddingKernels;
struct GemmKernels;
struct LatentKernels;
struct LossKernels;
struct LowRankKernels;
struct MoeKernels;
struct NormKernels;
struct OptimKernels;
struct QuantizeKernels;
struct RecurrentKernels;
struct RopeKernels;
struct RouterKernels;
struct SamplingKernels;
struct SsdKernels;

// References to tables that the backend owns and that must outlive this struct.
struct Kernels {
  // Nearly every op uses these two, so they are not part of a table.
  void (*fill)(const Stream&, const View& x, double value);
  // Converts between floating dtypes, rounding to nearest even; copies if the dtypes are equal.
  void (*cast)(const Stream&, const View& from, const View& to);

  const DeviceKernels& device;
  const ElementwiseKernels& elementwise;
  const GemmKernels& gemm;
  const NormKernels& norm;
  const ActivationKernels& activation;
  const RopeKernels& rope;
  const AttentionKernels& attention;
  const LatentKernels& latent;
  const EmbeddingKernels& embedding;
  const LossKernels& loss;
  const LowRankKernels& low_rank;
  const RouterKernels& router;
  const MoeKernels& moe;
  const OptimKernels& optim;
  const QuantizeKernels& quantize;
  const SamplingKernels& sampling;
  const RecurrentKernels& recurrent;
  const SsdKernels& ssd;
  const DeltaRuleKernels& delta_rule;
};

// Names a table. In a backend the source of a family of kernels defines a function of it that makes
// the table, such as RopeKernels kernel_table(Family<RopeKernels>); a gap does not link.
template <class Table>
struct Family {};

template <class Own, class Other>
const Own& same_type_or(const Own& own, const Other& other) {
  if constexpr (std::is_same_v<Own, Other>) {
    return other;
  } else {
    return own;
  }
}

// Returns `kernels` with its table of type Table replaced by `table`.
template <class Table>
Kernels with_table(const Kernels& kernels, const Table& table) {
  return {.fill = kernels.fill,
          .cast = kernels.cast,
          .device = same_type_or(kernels.device, table),
          .elementwise = same_type_or(kernels.elementwise, table),
          .gemm = same_type_or(kernels.gemm, table),
          .norm = same_type_or(kernels.norm, table),
          .activation = same_type_or(kernels.activation, table),
          .rope = same_type_or(kernels.rope, table),
          .attention = same_type_or(kernels.attention, table),
          .latent = same_type_or(kernels.latent, table),
          .embedding = same_type_or(kernels.embedding, table),
          .loss = same_type_or(kernels.loss, table),
          .low_rank = same_type_or(kernels.low_rank, table),
          .router = same_type_or(kernels.router, table),
          .moe = same_type_or(kernels.moe, table),
          .optim = same_type_or(kernels.optim, table),
          .quantize = same_type_or(kernels.quantize, table),
          .sampling = same_type_or(kernels.sampling, table),
          .recurrent = same_type_or(kernels.recurrent, table),
          .ssd = same_type_or(kernels.ssd, table),
          .delta_rule = same_type_or(kernels.delta_rule, table)};
}

}  // namespace bev
