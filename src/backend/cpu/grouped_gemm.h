// Grouped GEMM: many GEMMs with few rows each (experts). A piece is packed, computed and finished
// by one thread in its own memory: packed panels stay in its L2 cache, and threads synchronise only
// once. The division into pieces does not change results.
#pragma once

#include "backend/cpu/blocked_gemm.h"

namespace bev::cpu {

// GEMMs with larger K use blocked_gemm(): their panels would exceed the L2 cache.
constexpr std::int64_t kGroupDepth = 2048;

// The GEMMs of a group and their epilogue. Called on any thread; must not throw.
class GemmGroup {
 public:
  // Without packed_b. GEMMs with m == 0 are skipped.
  virtual BlockedGemm member(std::int64_t number) const = 0;
  // Epilogue, as for blocked_gemm().
  virtual void finish(std::int64_t number, const Area& area, const float* sums,
                      std::int64_t stride) const = 0;

 protected:
  ~GemmGroup() = default;
};

void multiply_group(ThreadPool& pool, const TileEngine& engine, std::int64_t count,
                    const GemmGroup& group);

}  // namespace bev::cpu
