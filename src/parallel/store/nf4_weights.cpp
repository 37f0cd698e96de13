#include "parallel/store/nf4_weights.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace bev {

namespace {

// The greatest divisor of `block` at whose multiples all blocks of a part begin.
std::int64_t common_run(std::int64_t block, std::int64_t columns,
                        const std::vector<ElementRun>& runs) {
  std::int64_t run = std::gcd(block, columns);
  for (const ElementRun& piece : runs) run = std::gcd(std::gcd(run, piece.local), piece.global);
  return run;
}

Nf4Layout layout_of(const Param& param, const std::vector<ElementRun>& runs) {
  Nf4Layout layout;
  for (const ElementRun& run : runs) layout.elements += run.count;
  std::int64_t columns = param.shape[param.shape.ndim() - 1];
  layout.run = common_run(param.nf4.block, columns, runs);
  if (param.nf4.double_quant) {
    layout.nested_run = common_run(param.nf4.block * kNf4NestedBlocks, columns, runs);
  }
  return layout;
}

void put_code(std::byte* codes, std::int64_t at, unsigned code) {
  auto shift = at % 2 == 0 ? 4 : 0;
  codes[at / 2] |= static_cast<std::byte>(code << shift);
}

}  // namespace

Nf4Layout nf4_layout(const Param& param, const ParamPart& part) {
  return layout_of(param, element_runs(param.shape, param.split, part));
}

Nf4Part::Nf4Part(const Param& param, const ParamPart& part)
    : param_(param), runs_(element_runs(param.shape, param.split, part)), bytes_() {
  layout_ = layout_of(param, runs_);
  bytes_.resize(static_cast<std::size_t>(layout_.bytes()));
}

void Nf4Part::add(const Nf4Source& source) {
  if (layout_.nested()) {
    std::byte* map = bytes_.data() + layout_.map_begin();
    std::size_t size = kNf4MapSize * sizeof(float);
    bool same = !has_map_ || std::memcmp(map, source.scales->map.data(), size) == 0;
    BEV_CHECK(same, ErrorKind::kInput, param_.name,
              ": its tensors have different nested_quant_maps; add --quantize-base none");
    std::memcpy(map, source.scales->map.data(), size);
    has_map_ = true;
  }
  std::int64_t end = source.param_begin + source.count;
  // Runs are in the order of the global elements too.
  auto first = std::partition_point(runs_.begin(), runs_.end(), [&](const ElementRun& run) {
    return run.global + run.count <= source.param_begin;
  });
  for (; first != runs_.end() && first->global < end; ++first) {
    ElementRun common = *first;
    std::int64_t skipped = std::max<std::int64_t>(source.param_begin - common.global, 0);
    common.local += skipped;
    common.global += skipped;
    common.count = std::min(first->global + first->count, end) - common.global;
    add_run(source, common);
  }
}

void Nf4Part::add_run(const Nf4Source& source, const ElementRun& run) {
  std::int64_t from = source.begin + run.global - source.param_begin, to = run.local;
  if (from % 2 == 0 && to % 2 == 0) {
    std::memcpy(bytes_.data() + to / 2, source.codes.data() + from / 2,
                static_cast<std::size_t>(run.count / 2));
    std::int64_t last = run.count - 1;
    if (run.count % 2 != 0) {
      put_code(bytes_.data(), to + last,
               source.codes[static_cast<std::size_t>((from + last) / 2)] >> 4);
    }
  } else {
    for (std::int64_t i = 0; i < run.count; ++i) {
      unsigned pair = source.codes[static_cast<std::size_t>((from + i) / 2)];
      put_code(bytes_.data(), to + i, (from + i) % 2 == 0 ? pair >> 4 : pair & 15);
    }
  }
  for (std::int64_t at = to / layout_.run; at * layout_.run < to + run.count; ++at) {
    put_scale(*source.scales, (from + at * layout_.run - to) / source.scales->block, at);
  }
}

void Nf4Part::put_scale(const Nf4Scales& scales, std::int64_t block, std::int64_t run) {
  std::byte* absmax = bytes_.data() + layout_.absmax_begin();
  auto at = static_cast<std::size_t>(block);
  if (!layout_.nested()) {
    std::memcpy(absmax + run * static_cast<std::int64_t>(sizeof(float)), &scales.absmax[at],
                sizeof(float));
    return;
  }
  absmax[run] = static_cast<std::byte>(scales.codes[at]);
  const float pair[2] = {scales.absmax[at / kNf4NestedBlocks], scales.offset};
  std::int64_t nested = run * layout_.run / layout_.nested_run;
  std::memcpy(
      bytes_.data() + layout_.nested_begin() + nested * static_cast<std::int64_t>(sizeof pair),
      pair, sizeof pair);
}

}  // namespace bev
