// The exact tables: kernels whose result for a row, such as a token, has the same bits whatever
// other rows the call has. Norms, RoPE, activations, the router, embeddings and losses compute one
// row at a time and need no other kernel here.
#include "backend/cpu/kernels/attention_tiles.h"
#include "backend/cpu/kernels/gemm_problem.h"
#include "backend/cpu/kernels/moe_tables.h"
#include "backend/cpu/kernels/scaled_gemm.h"
#include "backend/cpu/kernels/tables.h"
#include "kernels/latent.h"
#include "kernels/moe.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {
struct ExactTables {
  GemmKernels gemm = kernels().gemm;
  AttentionKernels attention = kernels().attention;
  LatentKernels latent = kernels().latent;
  MoeKernels moe = kernels().moe;
  QuantizeKernels quantize = kernels().quantize;

  ExactTables() {
    gemm.gemm = gemm_exact;
    attention.forward = attention_forward_exact;
    latent.absorb = false;
    moe.grouped_gemm = grouped_gemm_exact;
    quantize.scaled_gemm = scaled_gemm_exact;
    quantize.grouped_gemm = grouped_scaled_exact;
  }
};

Kernels with_tables(const ExactTables& tables) {
  const Kernels linear = with_table(with_table(kernels(), tables.gemm), tables.quantize);
  const Kernels mixed = with_table(with_table(linear, tables.attention), tables.latent);
  return with_table(mixed, tables.moe);
}
}  // namespace

const Kernels& exact_kernels() {
  static const ExactTables tables;
  static const Kernels kernels = with_tables(tables);
  return kernels;
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
