#include "verify/layout_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"
#include "bridge/adapter_start.h"
#include "comm/world.h"

namespace bev {

StepSamples random_samples(std::int64_t vocab_size, std::int64_t count, std::int64_t length,
                           std::uint64_t seed) {
  StepSamples samples;
  for (std::int64_t s = 0; s < count; ++s) {
    auto draw = [&](std::int64_t i, std::uint32_t use) {
      return philox({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(s), use, 0},
                    seed)[0];
    };
    std::vector<std::int32_t> tokens;
    for (std::int64_t t = 0; t <= length; ++t) {
      tokens.push_back(
          static_cast<std::int32_t>(draw(t, 0) % static_cast<std::uint32_t>(vocab_size)));
    }
    TokenSample sample = window_sample(tokens);
    if (length > 1) {
      auto cut = static_cast<std::int32_t>(1 + draw(0, 1) % static_cast<std::uint32_t>(length - 1));
      sample.documents = {cut, static_cast<std::int32_t>(length) - cut};
    }
    for (std::int64_t t = 0; t < length; ++t) {
      if (draw(t, 2) % 5 != 0) continue;
      sample.targets[static_cast<std::size_t>(t)] = -1;
      sample.weights[static_cast<std::size_t>(t)] = 0;
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// Copies a rank's part of a parameter into the global array.
void place(const Param& param, Context& ctx, const View& local, std::vector<double>& global) {
  global.resize(static_cast<std::size_t>(param.shape.numel()), kUnknown);
  ParamPart cut = part_of(param.split, ctx.mesh);
  visit_float(local.dtype, [&](auto zero) {
    auto from = ctx.download<decltype(zero)>(local);
    for (const ElementRun& run : element_runs(param.shape, param.split, cut)) {
      for (std::int64_t i = 0; i < run.count; ++i) {
        global[static_cast<std::size_t>(run.global + i)] =
            static_cast<double>(from[static_cast<std::size_t>(run.local + i)]);
      }
    }
  });
}

// Loss and gradient norm have a place of their own in the answer.
void add_reports(const StepResult& result, NamedTensors& reports) {
  for (const Metric& metric : result.metrics.subspan(1)) {
    if (metric.name != "grad norm") reports[metric.name].push_back(metric.value);
  }
  for (const RouterLoad& load : result.routers) {
    for_numbers(load, [&](const char* name, double value) {
      reports[concat(name, " of layer ", load.layer)].push_back(value);
    });
  }
}

// The part of the answer that one rank knows; the rest is NaN or missing.
LayoutAnswer rank_answer(World& world, const LayoutRun& run, const Kernels& kernels,
                         const std::vector<StepSamples>& batches) {
  LayoutAnswer answer;
  Engine engine(world, kernels, run.engine);
  if (run.engine.model.lora.used()) {
    start_adapter(engine.model());
    engine.weights_written();
  }
  Context& ctx = engine.model().ctx();
  ParamStore& store = engine.model().store();
  std::unique_ptr<BatchPreparation> preparation;
  if (run.preparation != nullptr) preparation = run.preparation(engine.model());
  for (std::int64_t step = 1; step <= run.steps; ++step) {
    std::vector<MicroBatch> micro_batches =
        rank_micro_batches(ctx, batches[static_cast<std::size_t>(step - 1)], run.micro_batch_size,
                           mtp_spec(run.engine.model));
    if (preparation) {
      preparation->prepare(micro_batches);
    } else {
      engine.prepare(micro_batches);
    }
    StepResult result =
        engine.train_step(micro_batches, {step, run.lr, run.weight_decay, 1.0, run.clip_grad});
    answer.losses.push_back(result.loss);
    answer.grad_norms.push_back(result.grad_norm);
    answer.tokens.push_back(result.tokens);
    add_reports(result, answer.reports);
    for (const Param* param : store.params()) {
      // Both are collective when sharded, so every rank takes part.
      if (param->trains) {
        WeightLease gradient = store.local_gradient(*param);
        if (step == 1) place(*param, ctx, gradient.view, answer.gradients[param->name]);
      }
      WeightLease value = store.local_value(*param);
      if (step == run.steps) {
        place(*param, ctx, value.view, answer.weights[param->name]);
      }
    }
  }
  return answer;
}

// Merges values of another rank. Values that both know must be bitwise equal.
void merge(std::vector<double>& to, const std::vector<double>& from, std::string_view what) {
  to.resize(std::max(to.size(), from.size()), kUnknown);
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (std::isnan(from[i])) continue;
    BEV_CHECK(std::isnan(to[i]) ||
                  std::bit_cast<std::uint64_t>(to[i]) == std::bit_cast<std::uint64_t>(from[i]),
              ErrorKind::kInternal, what, ": ranks disagree, ", to[i], " and ", from[i]);
    to[i] = from[i];
  }
}

// Serialises an answer as doubles: lengths before contents, names as characters.
class AnswerNumbers {
 public:
  explicit AnswerNumbers(std::vector<double> numbers = {}) : numbers_(std::move(numbers)) {}
  const std::vector<double>& numbers() const { return numbers_; }

  void put(const std::vector<double>& values) {
    numbers_.push_back(static_cast<double>(values.size()));
    numbers_.insert(numbers_.end(), values.begin(), values.end());
  }
  void put(const NamedTensors& tensors) {
    numbers_.push_back(static_cast<double>(tensors.size()));
    for (const auto& [name, values] : tensors) {
      put(std::vector<double>(name.begin(), name.end()));
      put(values);
    }
  }
  std::vector<double> take_values() {
    auto count = static_cast<std::size_t>(numbers_[next_++]);
    auto begin = numbers_.begin() + static_cast<std::ptrdiff_t>(next_);
    next_ += count;
    return {begin, begin + static_cast<std::ptrdiff_t>(count)};
  }
  NamedTensors take_tensors() {
    NamedTensors tensors;
    for (auto count = static_cast<std::size_t>(numbers_[next_++]); count > 0; --count) {
      std::string name;
      for (double letter : take_values()) name.push_back(static_cast<char>(letter));
      tensors[name] = take_values();
    }
    return tensors;
  }

 private:
  std::vector<double> numbers_;
  std::size_t next_ = 0;
};

View view_of(std::vector<double>& values) {
  return {values.data(), Dtype::kF64, {static_cast<std::int64_t>(values.size())}};
}

void send_answer(Group& world, const LayoutAnswer& answer) {
  AnswerNumbers packed;
  for (const auto* values : {&answer.losses, &answer.grad_norms, &answer.tokens}) {
    packed.put(*values);
  }
  for (const auto* tensors : {&answer.reports, &answer.gradients, &answer.weights}) {
    packed.put(*tensors);
  }
  std::vector<double> numbers = packed.numbers(), size = {static_cast<double>(numbers.size())};
  world.send(view_of(size), 0, 0, "size of an answer").wait();
  world.send(view_of(numbers), 0, 0, "answer").wait();
}

void receive_answer(Group& world, int from, LayoutAnswer& answer) {
  std::vector<double> size(1);
  world.receive(view_of(size), from, 0, "size of an answer").wait();
  std::vector<double> numbers(static_cast<std::size_t>(size[0]));
  world.receive(view_of(numbers), from, 0, "answer").wait();
  AnswerNumbers packed(std::move(numbers));
  merge(answer.losses, packed.take_values(), "loss");
  merge(answer.grad_norms, packed.take_values(), "gradient norm");
  merge(answer.tokens, packed.take_values(), "tokens");
  for (NamedTensors* to : {&answer.reports, &answer.gradients, &answer.weights}) {
    for (auto& [name, values] : packed.take_tensors()) merge((*to)[name], values, name);
  }
}

}  // namespace

LayoutAnswer run_layout_rank(World& world, const LayoutRun& run, const Kernels& kernels,
                             const std::vector<StepSamples>& batches) {
  std::unique_ptr<World> filtered = run.filter ? run.filter->wrap(world) : nullptr;
  LayoutAnswer answer = rank_answer(filtered ? *filtered : world, run, kernels, batches);
  std::vector<int> everyone(static_cast<std::size_t>(world.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  std::unique_ptr<Group> group = world.make_group("answers", everyone);
  if (world.rank() != 0) {
    send_answer(*group, answer);
    return {};
  }
  for (int rank = 1; rank < world.size(); ++rank) receive_answer(*group, rank, answer);
  return answer;
}

LayoutAnswer run_layout(const LayoutRun& run, const Kernels& kernels,
                        const std::vector<StepSamples>& batches) {
  LayoutAnswer answer;
  auto ranks = static_cast<int>(mesh_shape(run.engine.parallel).size());
  run_thread_ranks(ranks, {run.timeout_seconds}, [&](World& world) {
    LayoutAnswer found = run_layout_rank(world, run, kernels, batches);
    if (world.rank() == 0) answer = std::move(found);
  });
  return answer;
}

namespace {
double largest_value(const std::vector<double>& values) {
  double largest = 0;
  for (double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}
}  // namespace

TensorDifference largest_difference(const NamedTensors& expected, const NamedTensors& actual,
                                    double floor) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double least_scale = 0;
  for (const auto& [name, values] : expected) {
    least_scale = std::max(least_scale, floor * largest_value(values));
  }
  TensorDifference worst;
  for (const auto& [name, values] : expected) {
    auto other = actual.find(name);
    if (other == actual.end() || other->second.size() != values.size()) {
      return {kInfinity, name + " (missing or of another size)"};
    }
    double difference = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      double d = std::abs(values[i] - other->second[i]);
      difference = std::isnan(d) ? kInfinity : std::max(difference, d);
    }
    double scale = std::max(largest_value(values), least_scale);
    double relative = scale > 0 ? difference / scale : difference;
    if (relative > worst.value) worst = {relative, name};
  }
  if (actual.size() != expected.size()) return {kInfinity, "(number of tensors)"};
  return worst;
}

}  // namespace bev
