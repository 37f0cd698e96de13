#include "optim/matrix_rule.h"

#include "base/error.h"
#include "kernels/elementwise.h"

namespace bev {

std::vector<Range> MatrixBlock::part_ranges(std::int64_t parts, std::int64_t index) const {
  std::vector<Range> ranges;
  std::int64_t begin = 0;
  const auto add = [&](std::int64_t size) {
    Range share = shard_range(size, parts, index);
    ranges.push_back({begin + share.begin, begin + share.end});
    begin += size;
  };
  if (segments.empty()) add(size(split));
  for (std::int64_t segment : segments) add(segment);
  return ranges;
}

MatrixBlock matrix_shape(const Param& param) {
  const int first = param.split.of_experts() ? 1 : 0;
  MatrixBlock block{.param = &param};
  block.vector = param.shape.ndim() - first < 2;
  block.rows = block.vector ? 1 : param.shape[first];
  block.columns = 1;
  for (int dim = block.vector ? first : first + 1; dim < param.shape.ndim(); ++dim) {
    block.columns *= param.shape[dim];
  }
  if (param.split.dim >= first) {
    block.split = block.vector ? 1 : param.split.dim - first;
    block.segments = param.split.segments;
  }
  return block;
}

std::vector<MatrixBlock> matrix_blocks(const Param& param, const Group& tensor, bool split_fused) {
  const bool experts = param.split.of_experts();
  const std::int64_t count = experts ? param.local[0] : 1;
  const std::int64_t elements = count == 0 ? 0 : param.local.numel() / count;
  MatrixBlock whole = matrix_shape(param);
  const std::int64_t local_rows = whole.vector ? 1 : param.local[experts ? 1 : 0];
  whole.local_shape = {local_rows, local_rows == 0 ? 0 : elements / local_rows};
  std::vector<MatrixBlock> blocks;
  for (std::int64_t expert = 0; expert < count; ++expert) {
    MatrixBlock block = whole;
    block.expert = expert;
    block.local = {expert * elements, (expert + 1) * elements};
    blocks.push_back(std::move(block));
  }
  if (!split_fused || !param.fused || experts || whole.split != 0 || whole.segments.empty()) {
    return blocks;
  }
  // Local rows of each segment follow one another.
  blocks.clear();
  std::int64_t begin = 0;
  for (std::int64_t segment : whole.segments) {
    MatrixBlock block = whole;
    block.rows = segment;
    block.segments.clear();
    block.local_shape[0] = shard_range(segment, tensor.size(), tensor.rank()).size();
    block.local = {begin, begin + block.local_shape.numel()};
    begin = block.local.end;
    blocks.push_back(std::move(block));
  }
  return blocks;
}

Shape matrix_state_shape(const Param& param, const MatrixStateSpec& spec) {
  if (!param.split.of_experts()) return spec.shape;
  std::vector<std::int64_t> dims = {param.shape[0]};
  dims.insert(dims.end(), spec.shape.dims().begin(), spec.shape.dims().end());
  return Shape(dims);
}

std::unique_ptr<MatrixRule> make_matrix_rule(const OptimConfig& config, OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kMuon:
      return make_muon(config);
    case OptimizerKind::kAdafactor:
      return make_adafactor(config);
    default:
      BEV_CHECK(kind == OptimizerKind::kSoap, ErrorKind::kInternal,
                "optimizer: it updates no whole matrices");
      return make_soap(config);
  }
}

namespace {

// Copies the part of a tensor-parallel rank between its own memory and the whole matrix.
void copy_part(Context& ctx, const MatrixBlock& block, const std::vector<Range>& ranges,
               const View& whole, const View& part, bool to_whole) {
  std::int64_t held = 0, before = 0;
  for (const Range& range : ranges) held += range.size();
  for (const Range& range : ranges) {
    if (range.size() == 0) continue;
    const bool rows = block.split == 0;
    View large = whole.flat(), small = part.flat();
    const std::int64_t columns = rows ? block.columns : range.size();
    std::byte* in_whole = large.address(rows ? range.begin * block.columns : range.begin);
    std::byte* in_part = small.address(rows ? before * block.columns : before);
    const std::int64_t whole_stride = block.columns, part_stride = rows ? block.columns : held;
    ctx.kernels.elementwise.copy_rows(ctx.stream,
                                      {.src = to_whole ? in_part : in_whole,
                                       .dst = to_whole ? in_whole : in_part,
                                       .dtype = whole.dtype,
                                       .rows = rows ? range.size() : block.rows,
                                       .columns = columns,
                                       .src_stride = to_whole ? part_stride : whole_stride,
                                       .dst_stride = to_whole ? whole_stride : part_stride});
    before += range.size();
  }
}

}  // namespace

WholeMatrix gather_whole(Context& ctx, const MatrixBlock& block, Group& tensor, const View& local) {
  const Shape shape = {block.rows, block.columns};
  if (block.split < 0 || tensor.size() == 1) return {local.reshape(shape)};
  Tensor gathered = ctx.allocate(local.dtype, {block.numel()}, "matrix update");
  tensor.all_gather(local.flat(), gathered, block.param->name).wait();
  Tensor whole = ctx.allocate(local.dtype, shape, "matrix update");
  const std::int64_t others = block.numel() / block.size(block.split);
  std::int64_t at = 0;
  for (int rank = 0; rank < tensor.size(); ++rank) {
    std::vector<Range> ranges = block.part_ranges(tensor.size(), rank);
    std::int64_t held = 0;
    for (const Range& range : ranges) held += range.size();
    View part = gathered.view().rows(at, at + held * others);
    copy_part(ctx, block, ranges, whole, part, true);
    at += held * others;
  }
  return {whole, whole};
}

void take_part(Context& ctx, const MatrixBlock& block, Group& tensor, const View& whole,
               const View& local) {
  if (block.split < 0 || tensor.size() == 1) return;
  copy_part(ctx, block, block.part_ranges(tensor.size(), tensor.rank()), whole, local, false);
}

}  // namespace bev
