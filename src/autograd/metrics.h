// Metrics of a training step: losses, norms, counts. Each is a sum to which ranks add on the
// device. The block of sums is laid out when the engine is built, all-reduced over all ranks and
// fetched once per step, so that a new metric is a declared name (parallel/step_metrics.cpp, or
// TrainOptions::metrics) and a line that adds to ctx.metric(name).
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

// How the value of a metric follows from the sum over all ranks.
enum class MetricForm : std::uint8_t {
  kSum,
  kMean,          // divided by the weight of a term of the objective over the global batch
  kNorm,          // square root of the sum
  kGradientNorm,  // square root, divided by the loss scale
};

// When ranks add to a metric.
enum class MetricPhase : std::uint8_t {
  kStep,    // before the end of gradient reduction; reduced before the update
  kUpdate,  // during or after the update; 0 if a step has no update
  kHost,    // never: the host derives it from other sums
};

// How log lines show a metric.
enum class MetricStyle : std::uint8_t {
  kHidden,
  kLoss,    // mean over the steps of the line, with an exponent, among the losses
  kNumber,  // of the last step, with three decimals
  kCount,   // of the last step, as an integer
};

struct MetricSpec {
  std::string name;  // in log lines: "grad norm"
  MetricStyle style = MetricStyle::kCount;
  MetricForm form = MetricForm::kSum;
  MetricPhase phase = MetricPhase::kStep;
  std::size_t term = 0;  // index of the objective's term whose weight divides a mean
  std::string key = {};  // in JSON lines; empty: derived from the name
};

// The value of a metric in a finished step.
struct Metric {
  std::string name;
  double value = 0;
  MetricStyle style = MetricStyle::kCount;
  std::string key = {};
};

struct MetricId {
  std::size_t index = 0;
};
struct TableId {
  std::size_t index = 0;
};

class MetricBlock {
 public:
  // All ranks must declare the same metrics in the same order, which is the order of tell().
  MetricId declare(MetricSpec spec);
  // Declares a table with its own dtype, for statistics of many rows, and how ranks reduce it.
  TableId declare_table(Dtype dtype, const Shape& shape, Reduction reduction = Reduction::kSum);
  void allocate(Arena& arena);

  // The address to which this rank adds (f64, on the device).
  double* at(MetricId id) const;
  // The address by name; nullptr if the metric was not declared or is hidden, so that nobody reads
  // it.
  double* find(std::string_view name) const;
  View table(TableId id) const;
  // Whether any metric of the phase is shown.
  bool shows(MetricPhase phase) const;

  // Zeroes all sums at the start of a step.
  void clear(Context& ctx) const;
  // All-reduces the sums of a phase over the world; in the step's also the tables, which have
  // dtypes of their own, one by one. Collective.
  void reduce(Group& world, MetricPhase phase) const;
  // Copies the block to the host asynchronously. `copy` is valid after wait() and must live until
  // then.
  Work fetch(Context& ctx, std::vector<double>& copy) const;

  // Values of such a copy:
  double sum(const std::vector<double>& copy, MetricId id) const;
  std::vector<double> table_values(const std::vector<double>& copy, TableId id) const;
  // All metrics but hidden ones, given the weights of the objective's terms. The result is valid
  // until the next call; value() reads one of them, set() sets a kHost metric.
  std::span<const Metric> tell(const std::vector<double>& copy, std::span<const double> weights,
                               double loss_scale);
  double value(MetricId id) const { return told_[entries_[id.index].told].value; }
  void set(MetricId id, double value) { told_[entries_[id.index].told].value = value; }

 private:
  struct Entry {
    MetricSpec spec;
    std::size_t word = 0;  // offset in the block
    std::size_t told = 0;  // index in told_
  };
  struct Table {
    View view;  // dtype and shape
    Reduction reduction = Reduction::kSum;
    std::size_t word = 0;  // offset in the block
  };
  std::size_t place(MetricPhase phase, std::size_t word);

  std::vector<Entry> entries_;
  std::vector<Metric> told_;
  std::vector<Table> tables_;
  // Offsets in words: sums of the step, then sums of the update, then the tables.
  std::size_t update_begin_ = 0, update_end_ = 0;
  Tensor memory_;
};

}  // namespace bev
