#include "autograd/metrics.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/context.h"
#include "base/divide.h"
#include "kernels/device.h"

namespace bev {

namespace {
double value_of(const MetricSpec& spec, double sum, std::span<const double> weights,
                double loss_scale) {
  switch (spec.form) {
    case MetricForm::kSum:
      return sum;
    case MetricForm::kMean:
      return weights[spec.term] > 0 ? sum / weights[spec.term] : 0;
    case MetricForm::kNorm:
      return std::sqrt(sum);
    case MetricForm::kGradientNorm:
      return std::sqrt(sum) / loss_scale;
  }
  return sum;
}
}  // namespace

MetricId MetricBlock::declare(MetricSpec spec) {
  BEV_CHECK(memory_.empty(), ErrorKind::kInternal, "metrics: \"", spec.name,
            "\" is declared after the block was allocated");
  bool twice = std::ranges::any_of(
      entries_, [&](const Entry& entry) { return entry.spec.name == spec.name; });
  BEV_CHECK(!twice, ErrorKind::kConfig, "metrics: \"", spec.name, "\" is declared twice");
  std::size_t told = told_.size();
  if (spec.style != MetricStyle::kHidden) told_.push_back({spec.name, 0, spec.style, spec.key});
  entries_.push_back({.spec = std::move(spec), .told = told});
  return {entries_.size() - 1};
}

TableId MetricBlock::declare_table(Dtype dtype, const Shape& shape, Reduction reduction) {
  tables_.push_back({.view = {nullptr, dtype, shape}, .reduction = reduction});
  return {tables_.size() - 1};
}

std::size_t MetricBlock::place(MetricPhase phase, std::size_t word) {
  for (Entry& entry : entries_) {
    if (entry.spec.phase == phase) entry.word = word++;
  }
  return word;
}

void MetricBlock::allocate(Arena& arena) {
  constexpr std::size_t kTableAlignment = 8;  // in words: the alignment of an allocation
  update_begin_ = place(MetricPhase::kStep, 0);
  update_end_ = place(MetricPhase::kUpdate, update_begin_);
  std::size_t words = update_end_;
  for (Table& table : tables_) {
    table.word = round_up(words, kTableAlignment);
    words = table.word + ceil_div(table.view.bytes(), sizeof(double));
  }
  memory_ = Tensor(arena, Dtype::kF64, {static_cast<std::int64_t>(words)}, "step");
}

double* MetricBlock::at(MetricId id) const {
  return memory_.as<double>() + entries_[id.index].word;
}

double* MetricBlock::find(std::string_view name) const {
  for (const Entry& entry : entries_) {
    if (entry.spec.name != name) continue;
    bool asked = entry.spec.style != MetricStyle::kHidden && entry.spec.phase != MetricPhase::kHost;
    return asked ? memory_.as<double>() + entry.word : nullptr;
  }
  return nullptr;
}

View MetricBlock::table(TableId id) const {
  const Table& table = tables_[id.index];
  View view = table.view;
  view.data = memory_.as<double>() + table.word;
  return view;
}

bool MetricBlock::shows(MetricPhase phase) const {
  return std::ranges::any_of(entries_, [&](const Entry& entry) {
    return entry.spec.phase == phase && entry.spec.style != MetricStyle::kHidden;
  });
}

void MetricBlock::clear(Context& ctx) const { ctx.kernels.fill(ctx.stream, memory_, 0); }

void MetricBlock::reduce(Group& world, MetricPhase phase) const {
  auto update = static_cast<std::int64_t>(update_begin_);
  if (phase == MetricPhase::kUpdate) {
    Tensor sums = memory_.rows(update, static_cast<std::int64_t>(update_end_));
    world.all_reduce(sums, Reduction::kSum, "metrics of the update").wait();
    return;
  }
  world.all_reduce(memory_.rows(0, update), Reduction::kSum, "metrics of the step").wait();
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    world.all_reduce(table({i}), tables_[i].reduction, "metrics by row").wait();
  }
}

Work MetricBlock::fetch(Context& ctx, std::vector<double>& copy) const {
  copy.resize(static_cast<std::size_t>(memory_.numel()));
  return ctx.kernels.device.fetch(ctx.stream, memory_, copy.data());
}

double MetricBlock::sum(const std::vector<double>& copy, MetricId id) const {
  return copy[entries_[id.index].word];
}

std::vector<double> MetricBlock::table_values(const std::vector<double>& copy, TableId id) const {
  const Table& table = tables_[id.index];
  return visit_float(table.view.dtype, [&](auto type) {
    const auto* values = reinterpret_cast<const decltype(type)*>(copy.data() + table.word);
    return std::vector<double>(values, values + table.view.numel());
  });
}

std::span<const Metric> MetricBlock::tell(const std::vector<double>& copy,
                                          std::span<const double> weights, double loss_scale) {
  for (const Entry& entry : entries_) {
    bool summed = entry.spec.phase != MetricPhase::kHost;
    if (!summed || entry.spec.style == MetricStyle::kHidden) continue;
    told_[entry.told].value = value_of(entry.spec, copy[entry.word], weights, loss_scale);
  }
  return told_;
}

}  // namespace bev
