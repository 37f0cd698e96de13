#include "backend/cpu/kernels/nf4.h"

#include <algorithm>

#include "backend/cpu/kernels/pieces.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

// The absmax of a run. The product is rounded before the offset is added, as bitsandbytes does.
float absmax_of(const Nf4View& from, std::int64_t run) {
  if (!from.layout.nested()) return from.absmax()[run];
  const float* pair = from.nested() + 2 * (run * from.layout.run / from.layout.nested_run);
  volatile float product = from.map()[from.absmax_codes()[run]] * pair[0];
  return product + pair[1];
}

// The 16 values of a run, rounded to From and then to To.
template <class From, class To>
void fill_table(float absmax, To (&table)[16]) {
  for (std::size_t code = 0; code < 16; ++code) {
    table[code] = static_cast<To>(static_cast<float>(From(kNf4Values[code] * absmax)));
  }
}

template <class From, class To>
void dequantize_runs(const Nf4View& from, std::int64_t first, std::int64_t end, To* out) {
  To table[16];
  for (std::int64_t run = first; run < end; ++run) {
    fill_table<From>(absmax_of(from, run), table);
    std::int64_t at = run * from.layout.run;
    const std::int64_t stop = std::min(at + from.layout.run, from.layout.elements);
    const std::uint8_t* codes = from.codes();
    if (at % 2 != 0) {
      out[at] = table[codes[at / 2] & 15];
      ++at;
    }
    for (; at + 1 < stop; at += 2) {
      out[at] = table[codes[at / 2] >> 4];
      out[at + 1] = table[codes[at / 2] & 15];
    }
    if (at < stop) out[at] = table[codes[at / 2] >> 4];
  }
}

}  // namespace

void dequantize_nf4(const Stream& stream, const Nf4View& from, const View& to) {
  const std::int64_t runs = from.layout.runs();
  const std::int64_t some = std::max<std::int64_t>(1, kFlatPiece / from.layout.run);
  visit_float(from.dtype, [&](auto element) {
    visit_float(to.dtype, [&](auto wanted) {
      auto* out = static_cast<decltype(wanted)*>(to.data);
      for_ranges(stream, runs, some, [&](std::int64_t begin, std::int64_t end) {
        dequantize_runs<decltype(element)>(from, begin, end, out);
      });
    });
  });
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
