// Blocked GEMM over a tile engine (microkernel). All threads of the pool pack a block of the
// operands, then each thread computes areas of c. The division depends only on the shape, not on
// the number of threads.
#pragma once

#include "backend/cpu/gemm_dims.h"
#include "backend/cpu/tile_engine.h"
#include "base/function_ref.h"
#include "base/thread_pool.h"
#include "tensor/packed_operand.h"

namespace bev::cpu {

struct BlockedGemm {
  GemmDims dims;  // k >= 1
  const void *a = nullptr, *b = nullptr;
  std::int64_t element_bytes = 0;
  PackedOperand* packed_b = nullptr;
};

// Size of all packed panels of op(b).
std::size_t packed_bytes(const TileEngine& engine, const GemmDims& dims);

// Epilogue: finish(area, sums, stride) is called once for every area of c, on any thread, with
// row-major sums whose rows are `stride` apart. It must not throw.
using FinishArea = FunctionRef<void(const Area& area, const float* sums, std::int64_t stride)>;
void blocked_gemm(ThreadPool& pool, const TileEngine& engine, const BlockedGemm& gemm,
                  FinishArea finish);

}  // namespace bev::cpu
