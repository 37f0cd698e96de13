#include "tests/support/op_checks.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "tests/support/devices.h"
#include "tests/support/lazy_lane.h"

namespace bev::test {

namespace {

using Lists = std::vector<std::vector<double>>;

// Relative error norms against the f64 result of the same rounded inputs.
struct Tolerance {
  Dtype dtype;
  double output, gradient;
};
constexpr Tolerance kTolerances[] = {
    {Dtype::kF32, 2e-6, 5e-6}, {Dtype::kBf16, 1e-2, 2e-2}, {Dtype::kF16, 1.5e-3, 3e-3}};
// Another backend sums in another order, has its own exponentials and may round logits to the
// model's dtype. TF32 GEMMs would be far outside of the f32 tolerance.
constexpr Tolerance kDeviceTolerances[] = {
    {Dtype::kF32, 5e-5, 1e-4}, {Dtype::kBf16, 1.5e-2, 3e-2}, {Dtype::kF16, 2.5e-3, 5e-3}};
constexpr double kFiniteDifferenceTolerance = 1e-7;

// Larger rows test the tile sizes of kernels; finite differences would take too long.
constexpr std::int64_t kMostDifferences = 600;
bool is_large(const OpCase& test) {
  std::int64_t count = 0;
  for (const OpInput& input : test.inputs) count += input.shape.numel();
  for (const OpParam& param : test.params) count += param.shape.numel();
  return count > kMostDifferences;
}

// The values rounded to the dtype.
OpValues rounded(OpValues values, Dtype dtype) {
  visit_float(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (Lists* lists : {&values.inputs, &values.params}) {
      for (std::vector<double>& list : *lists) {
        for (double& x : list) x = T(static_cast<accumulate_t<T>>(x));
      }
    }
  });
  return values;
}

// Finite differences: central, of fourth order, on one persistent bench.
class Differences {
 public:
  Differences(const OpCase& test, OpValues values)
      : test_(test), values_(std::move(values)), bench_(Dtype::kF64, 1, test.kernels) {
    fill_bench(test_, values_, {}, bench_);
  }

  std::vector<double> of_input(std::size_t index) { return of(values_.inputs[index]); }
  std::vector<double> of_param(std::size_t index) { return of(values_.params[index]); }

 private:
  std::vector<double> of(std::vector<double>& list) {
    constexpr double kStep = 2e-4;
    std::vector<double> out;
    for (double& x : list) {
      double middle = x;
      auto at = [&](double steps) {
        x = middle + steps * kStep;
        return objective_of(test_, values_, bench_);
      };
      double near = at(1) - at(-1), far = at(2) - at(-2);
      x = middle;
      out.push_back((8 * near - far) / (12 * kStep));
    }
    return out;
  }

  const OpCase& test_;
  OpValues values_;
  Bench bench_;
};

void check_gradients(const OpCase& test, const OpValues& values, const OpResult& exact) {
  Differences differences(test, values);
  for (std::size_t i = 0; i < test.inputs.size(); ++i) {
    EXPECT_LT(relative_error(exact.input_grads[i], differences.of_input(i)),
              kFiniteDifferenceTolerance)
        << "gradient of input " << i;
  }
  for (std::size_t i = 0; i < test.params.size(); ++i) {
    EXPECT_LT(relative_error(exact.param_grads[i], differences.of_param(i)),
              kFiniteDifferenceTolerance)
        << "gradient of parameter " << i;
  }
}

// Reports the tensor that differs, the error, and the worst element.
bool expect_near(const Lists& got, const Lists& want, double tolerance, const std::string& what) {
  EXPECT_EQ(got.size(), want.size()) << what;
  bool near = got.size() == want.size();
  for (std::size_t i = 0; near && i < got.size(); ++i) {
    const double error = relative_error(got[i], want[i]);
    if (error <= tolerance) continue;
    near = false;
    if (got[i].size() != want[i].size()) {
      ADD_FAILURE() << concat(what, " ", i, " has ", got[i].size(), " numbers, expected ",
                              want[i].size());
      continue;
    }
    std::size_t most = 0;
    auto apart = [&](std::size_t at) { return std::abs(got[i][at] - want[i][at]); };
    for (std::size_t at = 0; at < got[i].size() && !std::isnan(apart(most)); ++at) {
      if (!(apart(at) <= apart(most))) most = at;
    }
    ADD_FAILURE() << concat(what, " ", i, ": relative error ", error, ", tolerance ", tolerance,
                            "; most at ", most, " of ", got[i].size(), ": ", got[i][most],
                            ", expected ", want[i][most]);
  }
  return near;
}

// `where` describes the run.
bool expect_near(const OpResult& got, const OpResult& want, const Tolerance& tolerance,
                 const std::string& where) {
  const bool outputs = expect_near(got.outputs, want.outputs, tolerance.output, where + "output");
  const bool inputs = expect_near(got.input_grads, want.input_grads, tolerance.gradient,
                                  where + "gradient of input");
  const bool params = expect_near(got.param_grads, want.param_grads, tolerance.gradient,
                                  where + "gradient of parameter");
  return outputs && inputs && params;
}

void expect_equal(const OpResult& got, const OpResult& want, const std::string& what) {
  EXPECT_EQ(got.outputs, want.outputs) << what;
  EXPECT_EQ(got.input_grads, want.input_grads) << what;
  EXPECT_EQ(got.param_grads, want.param_grads) << what;
}

// The expected result with weight gradients accumulated over `times` micro-batches.
OpResult accumulated(OpResult once, double times) {
  for (std::vector<double>& gradient : once.param_grads) {
    for (double& x : gradient) x *= times;
  }
  return once;
}

void check_dtypes(const OpCase& test, const OpValues& values) {
  for (const Tolerance& row : kTolerances) {
    SCOPED_TRACE(name_of(row.dtype));
    const OpValues same = rounded(values, row.dtype);
    OpResult exact = run_op(test, same, {});
    OpResult result = run_op(test, same, {.dtype = row.dtype});
    expect_near(result, exact, row, "");
    expect_equal(run_op(test, same, {.dtype = row.dtype, .threads = 3}), result, "3 threads");
    expect_equal(run_op(test, same, {.dtype = row.dtype, .share_seeds = true}), result,
                 "shared gradients");
    expect_equal(run_op(test, same, {.dtype = row.dtype, .delay_weights = true}), result,
                 "delayed weight gradients");
    expect_equal(run_op(test, same, {.dtype = row.dtype, .offload = true}), result, "offload");
    expect_equal(run_op(test, same, {.dtype = row.dtype, .delay_weights = true, .offload = true}),
                 result, "offload and delayed weight gradients");
  }
}

// A run with an input or parameter frozen, and its expected result.
struct FrozenRun {
  std::string name;
  OpRunOptions options;
  OpResult expected;
};
std::vector<FrozenRun> frozen_runs(const OpCase& test, const OpResult& all) {
  const std::size_t inputs = test.inputs.size(), params = test.params.size();
  std::vector<FrozenRun> runs;
  for (std::size_t left_out = 0; left_out < inputs + params; ++left_out) {
    FrozenRun& run = runs.emplace_back();
    run.options.tracked.assign(inputs, true);
    run.options.trains.assign(params, true);
    run.expected = all;
    if (left_out < inputs) {
      run.name = concat("untracked input ", left_out);
      run.options.tracked[left_out] = false;
      run.expected.input_grads[left_out].clear();
    } else {
      run.name = concat("frozen parameter ", left_out - inputs);
      run.options.trains[left_out - inputs] = false;
      run.expected.param_grads[left_out - inputs].clear();
    }
  }
  return runs;
}

// Freezes each input and parameter separately; then all.
void check_frozen(const OpCase& test, const OpValues& values, const OpResult& all) {
  for (const FrozenRun& run : frozen_runs(test, all)) {
    SCOPED_TRACE(run.name);
    expect_equal(run_op(test, values, run.options), run.expected, "the rest");
  }
  OpRunOptions none;
  none.tracked.assign(test.inputs.size(), false);
  none.trains.assign(test.params.size(), false);
  OpResult result = run_op(test, values, none);
  EXPECT_EQ(result.outputs, all.outputs);
  EXPECT_EQ(result.recorded, 0u) << "nothing trains";
}

void check_accumulation(const OpCase& test, const OpValues& values, const OpResult& once) {
  OpResult twice = run_op(test, values, {.repeats = 2});
  expect_near(twice.param_grads, accumulated(once, 2).param_grads, 1e-13, "accumulation");
  for (std::size_t i = 0; i < once.sinks.size(); ++i) {
    EXPECT_EQ(twice.sinks[i], 2 * once.sinks[i]);
  }
}

// Compares a row in one dtype on a device.
class Comparison {
 public:
  Comparison(const OpCase& test, OpDevice& device, const Tolerance& tolerance)
      : test_(test),
        device_(device),
        tolerance_(tolerance),
        values_(rounded(values_for(test), tolerance.dtype)),
        exact_(run_op(test, values_, {})) {}

  // Runs every kind of run until one disagrees.
  bool run() const {
    if (!agrees("", {}, exact_)) return false;
    if (!agrees("shared gradients", {.share_seeds = true}, exact_)) return false;
    const OpResult twice = accumulated(exact_, 2);
    const bool narrow = tolerance_.dtype == Dtype::kBf16;
    if (!agrees(narrow ? "twice, weight gradients in bf16" : "twice",
                {.repeats = 2, .narrow_gradients = narrow}, twice)) {
      return false;
    }
    if (!is_large(test_) && !agrees("offload and delayed weight gradients",
                                    {.delay_weights = true, .offload = true}, exact_)) {
      return false;
    }
    if (tolerance_.dtype != Dtype::kF32) return true;
    for (const FrozenRun& run : frozen_runs(test_, exact_)) {
      if (!agrees(run.name, run.options, run.expected)) return false;
    }
    return true;
  }

 private:
  bool agrees(const std::string& how, OpRunOptions options, const OpResult& expected) const {
    const std::string where =
        concat(test_.name, ", ", name_of(tolerance_.dtype), how.empty() ? "" : ", ", how, ": ");
    options.dtype = tolerance_.dtype;
    options.device = &device_;
    try {
      return expect_near(run_op(test_, values_, options), expected, tolerance_, where);
    } catch (const Error& error) {
      ADD_FAILURE() << where << error.what();
      return false;
    }
  }

  const OpCase& test_;
  OpDevice& device_;
  Tolerance tolerance_;
  OpValues values_;
  OpResult exact_;
};

// A test of one row on one device.
class RowTest final : public testing::Test {
 public:
  RowTest(const OpCase& row, TestDevice device) : row_(row), device_(device) {}
  void TestBody() override {
    if (device_ == TestDevice::kCpu) return check_op(row_);
    const Kernels* kernels = find_device(device_);
    if (kernels == nullptr) GTEST_SKIP() << "no CUDA device";
    compare_op(row_, *kernels);
  }

 private:
  OpCase row_;
  TestDevice device_;
};

// Converts the name of a row to a valid test name.
std::string test_name(std::string name) {
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

}  // namespace

void check_op(const OpCase& test) {
  if (is_large(test))
    return compare_op(test, test.kernels != nullptr ? *test.kernels : lazy_kernels());
  SCOPED_TRACE(test.name);
  OpValues values = values_for(test);
  OpResult exact = run_op(test, values, {});
  EXPECT_EQ(run_op(test, values, {.backward = false}).outputs, exact.outputs) << "without a tape";
  expect_equal(run_op(test, values, {.threads = 3}), exact, "3 threads");
  expect_equal(run_op(test, values, {.share_seeds = true}), exact, "shared gradients");
  check_gradients(test, values, exact);
  check_frozen(test, values, exact);
  check_accumulation(test, values, exact);
  check_dtypes(test, values);
}

void compare_op(const OpCase& test, const Kernels& kernels) {
  OpDevice device(&kernels);
  for (const Tolerance& tolerance : kDeviceTolerances) {
    if (!Comparison(test, device, tolerance).run()) return;
  }
}

OpRows::OpRows(const char* suite, const std::vector<OpCase>& rows) {
  for (TestDevice device : built_devices()) {
    const bool cpu = device == TestDevice::kCpu;
    for (const OpCase& row : rows) {
      if (row.cpu_only && !cpu) continue;
      testing::RegisterTest(concat(cpu ? "" : "Cuda/", suite).c_str(), test_name(row.name).c_str(),
                            nullptr, nullptr, __FILE__, __LINE__,
                            [row, device]() -> testing::Test* { return new RowTest(row, device); });
    }
  }
}

void expect_same_bits(const OpCase& a, const OpCase& b) {
  SCOPED_TRACE(concat(a.name, " == ", b.name));
  OpValues values = values_for(a);
  for (Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    SCOPED_TRACE(name_of(dtype));
    OpCase named = b;
    named.name = a.name;  // gives both the same random cotangents
    expect_equal(run_op(named, values, {.dtype = dtype}), run_op(a, values, {.dtype = dtype}), "");
  }
}

}  // namespace bev::test
