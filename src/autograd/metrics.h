// What a training step tells of itself as numbers: losses, norms, counts. Each is a sum that ranks
// add to on the device. One block of them is laid out when the engine is built, reduced over all
// ranks and fetched once per step, so that a new metric is a name that is declared
// (parallel/step_metrics.cpp, or TrainOptions::metrics) and a line that adds to ctx.metric(name).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group.h"
#include "tensor/tensor.h"

namespace bev {

struct Context;

// What the sum over all ranks becomes.
enum class MetricForm : std::uint8_t {
  kSum,
  kMean,          // divided by the weight of a term of the objective in the global batch
  kNorm,          // its square root
  kGradientNorm,  // likewise, divided by the loss scale
};

// When ranks add to a metric.
enum class MetricPhase : std::uint8_t {
  kStep,    // up to the gradient sums: it is reduced before the update
  kUpdate,  // during the update or after it; 0 where a step makes none
  kHost,    // never: the host derives it from other sums
};

// How a metric is shown in log lines.
enum class MetricStyle : std::uint8_t {
  kHidden,
  kLoss,    // the mean over the steps of the line, with an exponent, among the losses
  kNumber,  // that of the last step, with three decimals
  kCount,   // that of the last step, a whole number
};

struct MetricSpec {
  std::string name;  // in log lines: "grad norm"
  MetricStyle style = MetricStyle::kCount;
  MetricForm form = MetricForm::kSum;
  MetricPhase phase = MetricPhase::kStep;
  std::size_t term = 0;  // the objective's term whose weight divides a mean
  std::string key = {};  // in JSON lines; empty: it follows from the name
};

// A metric of a finished step.
struct Metric {
  std::string name;
  double value = 0;
  MetricStyle style = MetricStyle::kCount;
  std::string key = {};
};

struct MetricId {
  std::size_t index = 0;
};

class MetricBlock {
 public:
  // All ranks declare the same, in the same order, which is the order of what tell() returns.
  MetricId declare(MetricSpec spec);
  // One table of sums in a dtype of its own, for what is added up row by row.
  void declare_table(Dtype dtype, const Shape& shape);
  void allocate(Arena& arena);

  // Where this rank adds (f64, on the device).
  double* at(MetricId id) const;
  // The same by name; nullptr where it was not declared or is hidden: nobody asks for it.
  double* find(std::string_view name) const;
  // Empty where none was declared.
  View table() const;
  // Whether a metric of the phase is shown.
  bool shows(MetricPhase phase) const;

  // The start of a step: all sums are 0.
  void clear(Context& ctx) const;
  // Sums over the ranks of the world what was added in a phase. Collective.
  void reduce(Group& world, MetricPhase phase) const;
  // Brings the block to the host as one copy, which is there after wait() and must stay until then.
  Work fetch(Context& ctx, std::vector<double>& copy) const;

  // From such a copy:
  double sum(const std::vector<double>& copy, MetricId id) const;
  std::vector<double> table_values(const std::vector<double>& copy) const;
  // All metrics but hidden ones, given the weights of the objective's terms. The result is valid
  // until the next call; value() reads one of them, set() is for those of the host.
  std::span<const Metric> tell(const std::vector<double>& copy, std::span<const double> weights,
                               double loss_scale);
  double value(MetricId id) const { return told_[entries_[id.index].told].value; }
  void set(MetricId id, double value) { told_[entries_[id.index].told].value = value; }

 private:
  struct Entry {
    MetricSpec spec;
    std::size_t word = 0;  // of the block
    std::size_t told = 0;  // in told_
  };
  std::size_t place(MetricPhase phase, std::size_t word);

  std::vector<Entry> entries_;
  std::vector<Metric> told_;
  View table_;  // dtype and shape
  // Words of the block: sums of the step, sums of the update, padding, the table.
  std::size_t update_begin_ = 0, update_end_ = 0, table_begin_ = 0;
  Tensor memory_;
};

}  // namespace bev
