#include "checkpoint/tensor_stats.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"

namespace bev {

namespace {

constexpr std::int64_t kPartElements = std::int64_t{1} << 20;

// Calls visit(box) for contiguous parts of the tensor.
template <class Visit>
void for_each_part(const Shape& shape, const Visit& visit) {
  for (std::int64_t begin = 0; begin < shape.numel(); begin += kPartElements) {
    Range range{begin, std::min(begin + kPartElements, shape.numel())};
    for (const Box& box : boxes_of_range(shape, range)) visit(box);
  }
}

std::vector<double>& read_values(CheckpointReader& reader, const std::string& name, const Box& box,
                                 std::vector<double>& values) {
  values.resize(static_cast<std::size_t>(box.numel()));
  reader.read(name, box, Dtype::kF64, values.data());
  return values;
}

// Runs work(result) for each result; an exception becomes the result's problem.
template <class Result, class Work>
void run_all(ThreadPool& pool, std::vector<Result>& results, const Work& work) {
  pool.run(static_cast<std::int64_t>(results.size()), [&](std::int64_t i) {
    Result& result = results[static_cast<std::size_t>(i)];
    try {
      work(result);
    } catch (const std::exception& error) {
      result.problem = error.what();
    }
  });
}

void add_stats(TensorStats& stats, double value) {
  if (!std::isfinite(value)) {
    ++(std::isnan(value) ? stats.nans : stats.infinities);
    return;
  }
  stats.zeros += value == 0 ? 1 : 0;
  stats.min = std::min(stats.min.value_or(value), value);
  stats.max = std::max(stats.max.value_or(value), value);
  stats.norm += value * value;
}

std::string describe(const GlobalTensor& tensor) {
  return concat(name_of(tensor.dtype), " ", tensor.shape);
}

// Why the tensors cannot be compared element-wise; "" if they can.
std::string mismatch(const GlobalTensor* a, const GlobalTensor* b) {
  if (a == nullptr) return concat("only in the second, ", describe(*b));
  if (b == nullptr) return concat("only in the first, ", describe(*a));
  if (a->shape == b->shape) return "";
  return concat(describe(*a), " in the first, ", describe(*b), " in the second");
}

void compare(CheckpointReader& a, CheckpointReader& b, TensorDifference& result) {
  const GlobalTensor *first = a.find(result.name), *second = b.find(result.name);
  result.problem = mismatch(first, second);
  if (!result.problem.empty()) return;
  std::vector<double> left, right;
  double difference = 0, left_norm = 0, right_norm = 0;
  for_each_part(first->shape, [&](const Box& box) {
    read_values(a, result.name, box, left);
    read_values(b, result.name, box, right);
    for (std::size_t i = 0; i < left.size(); ++i) {
      double x = left[i], y = right[i];
      if (std::isfinite(x) && std::isfinite(y)) {
        result.max_difference = std::max(result.max_difference, std::abs(x - y));
        difference += (x - y) * (x - y);
        left_norm += x * x;
        right_norm += y * y;
      }
      result.differing += x == y || (std::isnan(x) && std::isnan(y)) ? 0 : 1;
    }
  });
  double norm = std::sqrt(std::max(left_norm, right_norm));
  result.relative_norm = norm > 0 ? std::sqrt(difference) / norm : 0;
}

}  // namespace

std::vector<TensorStats> tensor_stats(CheckpointReader& reader, ThreadPool& pool) {
  std::vector<TensorStats> all;
  for (const auto& [name, tensor] : reader.manifest().tensors) all.push_back({.name = name});
  run_all(pool, all, [&](TensorStats& stats) {
    std::vector<double> values;
    for_each_part(reader.find(stats.name)->shape, [&](const Box& box) {
      for (double value : read_values(reader, stats.name, box, values)) add_stats(stats, value);
    });
    stats.norm = std::sqrt(stats.norm);
  });
  return all;
}

std::vector<TensorDifference> tensor_differences(CheckpointReader& a, CheckpointReader& b,
                                                 ThreadPool& pool) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : a.manifest().tensors) names.insert(name);
  for (const auto& [name, tensor] : b.manifest().tensors) names.insert(name);
  std::vector<TensorDifference> all;
  for (const std::string& name : names) all.push_back({.name = name});
  run_all(pool, all, [&](TensorDifference& result) { compare(a, b, result); });
  std::erase_if(all, [](const TensorDifference& result) {
    return result.differing == 0 && result.problem.empty();
  });
  return all;
}

}  // namespace bev
