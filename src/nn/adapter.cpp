#include "nn/adapter.h"

#include "base/error.h"
#include "base/text.h"

namespace bev {

namespace {

constexpr std::string_view kAName = ".lora_a.weight", kBName = ".lora_b.weight",
                           kMagnitudeName = ".lora_magnitude", kCopyName = ".trained_copy";

// The name of the linear layer that the weight belongs to.
std::string_view layer_name(const Param& weight) {
  return std::string_view(weight.name).substr(0, weight.name.rfind('.'));
}

// The segments of `split` that `rows` consist of, as a split of these rows alone.
Split split_of_rows(const Split& split, Range rows, std::string_view name) {
  Split out{split.axis, split.dim, {}};
  if (split.segments.empty()) return out;
  std::int64_t begin = 0;
  for (std::int64_t segment : split.segments) {
    std::int64_t end = begin + segment;
    if (begin >= rows.begin && end <= rows.end) out.segments.push_back(segment);
    bool cut = begin < rows.end && end > rows.begin && (begin < rows.begin || end > rows.end);
    BEV_CHECK(!cut, ErrorKind::kInternal, "adapter of ", name, ": rows ", rows.begin, " to ",
              rows.end, " cut the segment that ends at ", end);
    begin = end;
  }
  return out;
}

}  // namespace

namespace {
// The factor of the tokens is a table like the weight, and begins with zeros.
void make_embedding(const Param& weight, const LowRankSpec& spec, LowRank& adapter) {
  adapter.a.shape = {weight.shape[0], spec.rank};
  adapter.a.split = weight.split;
  adapter.a.init = {InitKind::kConstant, 0};
  adapter.a.table = true;
  adapter.b.shape = {weight.shape[1], spec.rank};
  adapter.b.split = {weight.split.axis, -1, {}};
  adapter.b.init = spec.init;
}
}  // namespace

LowRank make_low_rank(const Param& weight, const LowRankSpec& spec) {
  const int in_dim = weight.shape.ndim() - 1, out_dim = in_dim - 1;
  const Split whole{weight.split.axis, -1, {}};
  std::string name = concat(layer_name(weight), ".", spec.part);
  if (spec.number > 0) name += concat(".adapter", spec.number);
  if (spec.opposite) name += ".opposite";
  LowRank adapter;
  adapter.rows = spec.rows;
  adapter.scale = spec.scale;
  adapter.dropout = spec.dropout;
  adapter.number = spec.number;
  adapter.a.name = concat(name, kAName);
  adapter.a.shape = weight.shape;
  adapter.a.shape[out_dim] = spec.rank;
  adapter.a.split = weight.split.dim == in_dim ? weight.split : whole;
  adapter.a.init = spec.init;
  adapter.b.name = concat(name, kBName);
  adapter.b.shape = weight.shape;
  adapter.b.shape[out_dim] = spec.rows.size();
  adapter.b.shape[in_dim] = spec.rank;
  adapter.b.split =
      weight.split.dim == out_dim ? split_of_rows(weight.split, spec.rows, weight.name) : whole;
  adapter.b.init = {InitKind::kConstant, 0};
  adapter.a.trains = adapter.b.trains = !spec.opposite;
  if (spec.embedding) make_embedding(weight, spec, adapter);
  if (!spec.magnitude) return adapter;
  Param& magnitude = adapter.magnitude.emplace();
  magnitude.name = concat(name, kMagnitudeName);
  magnitude.shape = {spec.rows.size()};
  magnitude.split = adapter.b.split;
  magnitude.init = {InitKind::kConstant, 1};  // until start_adapter() knows the weights
  return adapter;
}

void LowRank::params(std::vector<Param*>& list) {
  list.insert(list.end(), {&a, &b});
  if (magnitude) list.push_back(&*magnitude);
}

std::int64_t LowRank::first_column(const Param& weight, const Mesh& mesh) const {
  const int out_dim = weight.shape.ndim() - 2;
  if (rows.begin == 0 || weight.split.dim != out_dim) return rows.begin;
  Shape before = weight.shape;
  before[out_dim] = rows.begin;
  Split split = split_of_rows(weight.split, {0, rows.begin}, weight.name);
  return split.local_shape(before, part_of(split, mesh))[out_dim];
}

Var in_own_rows(Context& ctx, const LowRank& adapter, const Var& x) {
  if (ctx.adapter_rows == nullptr) return x;
  BEV_CHECK(ctx.tape == nullptr, ErrorKind::kInternal, "adapter ", adapter.a.name,
            ": rows are chosen without gradients only");
  Tensor own = ctx.allocate(x.dtype(), x.shape(), "activations");
  ctx.kernels.fill(ctx.stream, own, 0);
  for (Range rows : ctx.adapter_rows->of.at(static_cast<std::size_t>(adapter.number))) {
    ctx.kernels.cast(ctx.stream, x.tensor.view().rows(rows.begin, rows.end),
                     own.view().rows(rows.begin, rows.end));
  }
  return make_output(ctx, "in_own_rows", std::move(own), x.placement, false);
}

bool has_rows(const Context& ctx, const LowRank& adapter) {
  return ctx.adapter_rows == nullptr ||
         !ctx.adapter_rows->of.at(static_cast<std::size_t>(adapter.number)).empty();
}

Param trained_copy_of(const Param& param) {
  Param copy = param;
  copy.name += kCopyName;
  copy.trained_copy = nullptr;
  copy.trains = true;
  copy.linear = false;
  return copy;
}

bool is_adapter_name(std::string_view name) {
  return name.ends_with(kAName) || name.ends_with(kBName) || name.ends_with(kMagnitudeName) ||
         name.ends_with(kCopyName);
}

}  // namespace bev
