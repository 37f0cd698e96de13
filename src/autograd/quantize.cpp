#include "autograd/quantize.h"

namespace bev {

Quantized quantize(const QuantizeTools& tools, const QuantizeRequest& request) {
  Quantized out;
  out.format = format_of(request.recipe, request.role);
  out.block = block_of(request.recipe, request.role);
  std::int64_t rows = request.groups.rows_of(request.x), columns = request.x.shape[1];
  std::int64_t padded = request.groups.padded_of(request.x, out.block);
  bool emulated = is_emulated(out.block);
  Dtype payload = emulated ? request.x.dtype : Dtype::kU8;
  auto make = [&](Dtype dtype, const Shape& shape) {
    return Tensor(tools.arena, dtype, shape, request.tag);
  };
  auto make_scales = [&](const Shape& shape) {
    return emulated ? Tensor() : make(Dtype::kF32, shape);
  };
  if (request.rows) {
    out.rows = make(payload, {rows, columns});
    out.row_scales = make_scales(scale_shape(out.block, rows, columns));
  }
  if (request.columns) {
    bool shared = request.rows && out.block == ScaleBlock::kTensor;
    out.columns = make(payload, {columns, padded});
    out.column_scales =
        shared ? out.row_scales : make_scales(scale_shape(out.block, columns, padded));
  }
  quantize_into(tools, request, out);
  return out;
}

void quantize_into(const QuantizeTools& tools, const QuantizeRequest& request,
                   const Quantized& to) {
  QuantizeArgs args;
  args.x = request.x;
  args.maker = request.maker;
  args.groups = request.groups;
  args.format = to.format;
  args.block = to.block;
  args.amax = request.amax;
  args.margin = request.recipe.margin;
  args.seen = request.seen;
  if (request.rows) {
    args.rows = to.rows;
    args.row_scales = to.row_scales;
  }
  if (request.columns) {
    args.columns = to.columns;
    args.column_scales = to.column_scales;
  }
  tools.kernels.quantize.quantize(tools.stream, args);
}

}  // namespace bev
