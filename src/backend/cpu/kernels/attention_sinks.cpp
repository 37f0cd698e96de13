// Attention sinks: a logit per head in the softmax denominator, and the terms of its gradient.
#include <cmath>

#include "backend/cpu/kernels/attention_tiles.h"
#include "backend/cpu/kernels/lanes.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

// Sinks may have another dtype than the accumulate type.
template <class A>
A sink_of(const View& sinks, std::int64_t head) {
  if (sinks.data == nullptr) return 0;
  A value = 0;
  visit_float(sinks.dtype,
              [&](auto zero) { value = static_cast<A>(widen(sinks.as<decltype(zero)>()[head])); });
  return value;
}

template <class T>
void add_to_rows(const AttentionSinkArgs& args, std::int64_t begin, std::int64_t end) {
  using A = accumulate_t<T>;
  const std::int64_t heads = args.lse.shape[1], size = args.out.shape[1] / heads;
  for (std::int64_t at = begin * heads; at < end * heads; ++at) {
    A& lse = args.lse.as<A>()[at];
    const A sink = sink_of<A>(args.sinks, at % heads), most = std::max(lse, sink);
    const A with = most + std::log(std::exp(lse - most) + std::exp(sink - most));
    const A factor = std::exp(lse - with);
    lse = with;
    T* __restrict out = args.out.as<T>() + at * size;
    for (std::int64_t d = 0; d < size; ++d) out[d] = narrow<T>(widen(out[d]) * factor);
  }
}

template <class T>
void set_terms(const SinkTermsArgs& args, std::int64_t begin, std::int64_t end) {
  using A = accumulate_t<T>;
  const std::int64_t heads = args.lse.shape[1], size = args.out.shape[1] / heads;
  const std::int64_t stride = args.terms.shape[1];
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t at = row * heads + head;
      const T *out = args.out.as<T>() + at * size, *dout = args.dout.as<T>() + at * size;
      const A delta =
          sum_of<A>(size, [&](std::int64_t d) { return widen(out[d]) * widen(dout[d]); });
      const A probability = std::exp(sink_of<A>(args.sinks, head) - args.lse.as<A>()[at]);
      args.terms.as<A>()[row * stride + args.first + head] = -probability * delta;
    }
  }
}

}  // namespace

void add_sinks(const Stream& stream, const AttentionSinkArgs& args) {
  visit_float(args.out.dtype, [&](auto zero) {
    for_ranges(stream, args.out.shape[0], rows_per_piece(args.out.shape[1]),
               [&](std::int64_t begin, std::int64_t end) {
                 add_to_rows<decltype(zero)>(args, begin, end);
               });
  });
}

void sink_terms(const Stream& stream, const SinkTermsArgs& args) {
  visit_float(args.out.dtype, [&](auto zero) {
    for_ranges(
        stream, args.out.shape[0], rows_per_piece(args.out.shape[1]),
        [&](std::int64_t begin, std::int64_t end) { set_terms<decltype(zero)>(args, begin, end); });
  });
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
