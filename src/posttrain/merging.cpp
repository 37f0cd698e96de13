#include "posttrain/merging.h"

#include <cmath>

#include "base/divide.h"
#include "bridge/convert.h"

namespace bev {

MergedWeights::MergedWeights(const ModelConfig& model, ParamSource& base, ReadAdapter read)
    : base_(base) {
  auto whole = [&](const Param& param) {
    std::vector<double> values(static_cast<std::size_t>(param.shape.numel()));
    read(param, values);
    return values;
  };
  LoraRules rules(model, model.lora);
  for_each_adapter(model, rules, [&](const Param& weight, const AdaptedModule& module) {
    LowRank adapter = make_low_rank(weight, module.spec);
    Factors factors{module.spec.rows,
                    module.spec.rank,
                    module.spec.scale,
                    module.spec.embedding,
                    whole(adapter.a),
                    whole(adapter.b),
                    {}};
    if (adapter.magnitude) factors.magnitude = whole(*adapter.magnitude);
    adapted_[weight.name].push_back(std::move(factors));
    modules_ += std::ssize(module.names);
  });
  for_each_copy(model, [&](const Param& param, const Param& copy) {
    copies_[param.name] = whole(copy);
    ++modules_;
  });
}

std::span<const std::byte> MergedWeights::stored(const ParamMapping& mapping, std::size_t part,
                                                 Dtype dtype) {
  if (changes(mapping.param)) return {};
  return base_.stored(mapping, part, dtype);
}

// `values` are row `row` of the expert's weight; the factors apply to it.
void MergedWeights::add(const Factors& factors, std::int64_t expert, std::int64_t row,
                        std::span<double> values) const {
  const std::int64_t in = std::ssize(values), own = row - factors.rows.begin;
  if (factors.embedding) {
    for (std::int64_t i = 0; i < in; ++i) {
      for (std::int64_t k = 0; k < factors.rank; ++k) {
        values[static_cast<std::size_t>(i)] +=
            factors.scale * factors.a[static_cast<std::size_t>(own * factors.rank + k)] *
            factors.b[static_cast<std::size_t>(i * factors.rank + k)];
      }
    }
    return;
  }
  const double* a = factors.a.data() + expert * factors.rank * in;
  const double* b = factors.b.data() + (expert * factors.rows.size() + own) * factors.rank;
  for (std::int64_t k = 0; k < factors.rank; ++k) {
    const double factor = factors.scale * b[k];
    for (std::int64_t i = 0; i < in; ++i) {
      values[static_cast<std::size_t>(i)] += factor * a[k * in + i];
    }
  }
  if (factors.magnitude.empty()) return;
  double squares = 0;
  for (double value : values) squares += value * value;
  const double factor = factors.magnitude[static_cast<std::size_t>(own)] / std::sqrt(squares);
  for (double& value : values) value *= factor;
}

void MergedWeights::read(const ParamMapping& mapping, Range elements, Dtype dtype, void* out) {
  if (auto copy = copies_.find(mapping.param); copy != copies_.end()) {
    return convert_elements({copy->second.data() + elements.begin, Dtype::kF64}, {out, dtype},
                            elements.size());
  }
  auto found = adapted_.find(mapping.param);
  if (found == adapted_.end()) return base_.read(mapping, elements, dtype, out);
  const Shape& shape = mapping.shape;
  const std::int64_t in = shape[shape.ndim() - 1], rows = shape[shape.ndim() - 2];
  const Range whole{elements.begin / in, ceil_div(elements.end, in)};  // rows
  std::vector<double> values(static_cast<std::size_t>(whole.size() * in));
  base_.read(mapping, {whole.begin * in, whole.end * in}, Dtype::kF64, values.data());
  for (std::int64_t row = whole.begin; row < whole.end; ++row) {
    auto at = std::span(values).subspan(static_cast<std::size_t>((row - whole.begin) * in),
                                        static_cast<std::size_t>(in));
    const std::int64_t own = row % rows;
    for (const Factors& factors : found->second) {
      if (own >= factors.rows.begin && own < factors.rows.end) add(factors, row / rows, own, at);
    }
  }
  convert_elements({values.data() + (elements.begin - whole.begin * in), Dtype::kF64}, {out, dtype},
                   elements.size());
}

}  // namespace bev
