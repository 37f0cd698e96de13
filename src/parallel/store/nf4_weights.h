// Weights in NF4. Quantisation is defined on whole tensors (tensor/nf4.h), so that a layout changes
// no value; each rank keeps the codes of its part, and the scales of the blocks that these lie in.
//
//   tensor   |------block------|------block------|     rows of 6, blocks of 8
//   row 0    a a a a a a   row 1    a a b b b b        tp 1 of 2: the last 3 columns
//   rank 1   a a a b b b   runs of gcd = 1: a scale for each element; of 64 in models of real sizes
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "autograd/param.h"
#include "tensor/nf4_quantize.h"

namespace bev {

// Memory of a rank's part. Blocks may begin at any row of the parameter, because tensors of files
// do, and at every multiple of the block's size from there.
Nf4Layout nf4_layout(const Param& param, const ParamPart& part);

// Elements [begin, begin + count) of a quantised tensor, which are [param_begin, ...) of the
// flattened global parameter.
struct Nf4Source {
  std::span<const std::uint8_t> codes;
  const Nf4Scales* scales = nullptr;
  std::int64_t begin = 0, param_begin = 0, count = 0;
};

// A rank's part of a parameter, built on the host.
class Nf4Part {
 public:
  Nf4Part(const Param& param, const ParamPart& part);

  // All sources together must be the whole parameter. Throws Error(kInput) if their maps of double
  // quantisation differ, as one is kept.
  void add(const Nf4Source& source);
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void add_run(const Nf4Source& source, const ElementRun& run);
  void put_scale(const Nf4Scales& scales, std::int64_t block, std::int64_t run);

  const Param& param_;
  Nf4Layout layout_;
  std::vector<ElementRun> runs_;
  std::vector<std::byte> bytes_;
  bool has_map_ = false;
};

}  // namespace bev
