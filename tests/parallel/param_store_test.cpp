#include "parallel/store/param_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "backend/cpu/cpu_kernels.h"
#include "base/function_ref.h"
#include "base/thread_pool.h"
#include "kernels/gemm.h"
#include "kernels/optim.h"
#include "tests/support/expect_error.h"

namespace bev::test {
namespace {

using Numbers = std::vector<double>;
using Named = std::map<std::string, Numbers>;

constexpr ShardingStrategy kStrategies[] = {ShardingStrategy::kNoShard, ShardingStrategy::kOptim,
                                            ShardingStrategy::kOptimGrads,
                                            ShardingStrategy::kOptimGradsParams};

Param make(std::string name, Shape shape, Split split = {},
           InitRule init = {InitKind::kNormal, 1}) {
  Param param;
  param.name = std::move(name);
  param.shape = shape;
  param.split = std::move(split);
  param.init = init;
  return param;
}

// Awkward sizes; with several stages, a tied embedding on the first and the last one.
std::vector<Param> make_params(const Mesh& mesh) {
  Split column{Axis::kTp, 0, {}}, row{Axis::kTp, 1, {}}, fused{Axis::kTp, 0, {6, 3, 4}};
  bool first = mesh.at().pp == 0, last = mesh.at().pp == mesh.shape().pp - 1;
  std::vector<Param> list;
  if (first || last) {
    Param table = make("table", {13, 5}, column);
    table.shared = mesh.shape().pp > 1;
    table.copy = !first;
    list.push_back(table);
  }
  if (first) {
    list.push_back(make("fused", {13, 3}, fused));
    list.push_back(make("scale", {7}, {}, {InitKind::kConstant, 0.5}));
    list.push_back(make("row", {5, 129}, row));
    Param frozen = make("frozen", {70});
    frozen.trains = false;
    list.push_back(frozen);
    list.push_back(make("one", {1}));
  }
  return list;
}

// The first and the last stage hold the embedding.
MeshShape at_ends(MeshShape shape) {
  if (shape.pp > 1) shape.embedding_stages = {0, shape.pp - 1};
  return shape;
}

struct Rank {
  Rank(World& world, const MeshShape& shape, ShardingStrategy strategy,
       std::int64_t bucket_elements)
      : pool(1), arena(make_host_memory()), mesh(world, at_ends(shape)), params(make_params(mesh)) {
    std::vector<Param*> list;
    for (Param& param : params) list.push_back(&param);
    StoreOptions options;
    options.dtype = options.grad_dtype = Dtype::kF64;
    options.strategy = strategy;
    options.bucket_elements = bucket_elements;
    options.overlap_reduce = options.overlap_gather = bucket_elements == 200;
    store = std::make_unique<ParamStore>(list, mesh, arena, cpu_kernels(), Stream{&pool, nullptr},
                                         options);
    store->initialise(99);
  }
  std::vector<ElementRun> runs(const Param& param) const {
    return element_runs(param.shape, param.split, part_of(param.split, mesh));
  }
  // Adds value(global element) as the gradient of this rank, and its squares if the store lets ops
  // do so.
  template <class F>
  void add_gradient(const Param& param, const F& value) {
    Placement placement =
        Placement().with(Axis::kDp, PlaceState::kPartial).with(Axis::kCp, PlaceState::kPartial);
    if (param.split.dim >= 0) placement = placement.with(Axis::kTp, PlaceState::kShard0);
    GradSink sink = store->sink(param, placement);
    for (const ElementRun& run : runs(param)) {
      for (std::int64_t i = 0; i < run.count; ++i) {
        double& to = sink.view.as<double>()[run.local + i];
        to = (sink.beta == 0 ? 0 : to) + value(run.global + i);
      }
    }
    if (sink.squares != nullptr) {
      cpu_kernels().optim.sum_squares(Stream{&pool, nullptr}, {&sink.view, 1}, sink.squares);
      sink.squared = true;
      ++squared_by_ops;
    }
    store->done(param, std::move(sink));
  }
  int squared_by_ops = 0;
  ThreadPool pool;
  Arena arena;
  Mesh mesh;
  std::vector<Param> params;
  std::unique_ptr<ParamStore> store;
};

struct StoreCase {
  MeshShape shape;
  ShardingStrategy strategy;
  std::int64_t bucket_elements;
};
MeshShape with_instances(MeshShape shape, std::int64_t instances) {
  shape.dp_instances = instances;
  return shape;
}
// Buckets of 200 elements overlap parameters.
std::vector<StoreCase> cases() {
  std::vector<StoreCase> list;
  for (MeshShape shape : {MeshShape{1, 1, 1, 1},
                          {2, 1, 1, 1},
                          {1, 1, 2, 1},
                          {1, 1, 3, 1},
                          {1, 2, 2, 1},
                          with_instances({1, 2, 2, 1}, 2),
                          with_instances({1, 1, 3, 1}, 3),
                          {2, 1, 2, 2},
                          {1, 1, 1, 3}}) {
    for (ShardingStrategy strategy : kStrategies) {
      for (std::int64_t elements : {1, 200, 1'000'000}) list.push_back({shape, strategy, elements});
    }
  }
  return list;
}
template <class Body>
void on_every_case(const Body& body) {
  for (const StoreCase& test : cases()) {
    SCOPED_TRACE(testing::Message()
                 << "tp " << test.shape.tp << " cp " << test.shape.cp << " dp " << test.shape.dp
                 << " pp " << test.shape.pp << " instances " << test.shape.dp_instances
                 << " strategy " << static_cast<int>(test.strategy) << " bucket "
                 << test.bucket_elements);
    body(test);
    if (testing::Test::HasFailure()) return;
  }
}
void run_ranks(const StoreCase& test, FunctionRef<void(Rank&)> body) {
  run_thread_ranks(static_cast<int>(test.shape.size()), {20.0}, [&](World& world) {
    Rank rank(world, test.shape, test.strategy, test.bucket_elements);
    body(rank);
  });
}

// Initial values by name and global element.
Named initial_values(const StoreCase& test) {
  Named values;
  std::mutex mutex;
  run_ranks(test, [&](Rank& rank) {
    for (const Param& param : rank.params) {
      WeightLease lease = rank.store->local_value(param);
      std::lock_guard lock(mutex);
      Numbers& global = values[param.name];
      global.resize(static_cast<std::size_t>(param.shape.numel()), std::nan(""));
      for (const ElementRun& run : rank.runs(param)) {
        for (std::int64_t i = 0; i < run.count; ++i) {
          double value = lease.view.as<double>()[run.local + i];
          double& to = global[static_cast<std::size_t>(run.global + i)];
          EXPECT_TRUE(std::isnan(to) || to == value) << param.name << ": holders differ";
          to = value;
        }
      }
    }
  });
  return values;
}

TEST(ParamStore, InitialValuesDoNotDependOnTheLayout) {
  Named expected = initial_values({{}, ShardingStrategy::kNoShard, 1'000'000});
  EXPECT_EQ(expected.size(), 6u);
  EXPECT_EQ(expected["scale"], Numbers(7, 0.5));
  EXPECT_NE(expected["row"][0], expected["row"][1]);
  on_every_case([&](const StoreCase& test) { EXPECT_EQ(initial_values(test), expected); });
}

TEST(ParamStore, OwnedRangesCoverEveryTrainingElementOnce) {
  on_every_case([](const StoreCase& test) {
    std::map<std::string, std::vector<int>> owners;
    std::mutex mutex;
    run_ranks(test, [&](Rank& rank) {
      std::lock_guard lock(mutex);
      for (const Param& param : rank.params) {
        owners[param.name].resize(static_cast<std::size_t>(param.shape.numel()));
      }
      for (const OptimRange& range : rank.store->optim_ranges()) {
        EXPECT_TRUE(range.param->trains);
        EXPECT_EQ(range.value.numel(), range.grad.numel());
        for (const ElementRun& run : rank.runs(*range.param)) {
          for (std::int64_t i = 0; i < run.count; ++i) {
            bool mine =
                run.local + i >= range.offset && run.local + i < range.offset + range.value.numel();
            if (mine) ++owners[range.param->name][static_cast<std::size_t>(run.global + i)];
          }
        }
      }
    });
    std::int64_t data_ranks = test.shape.dp * test.shape.cp;
    for (const auto& [name, counts] : owners) {
      // Replicated parameters are owned by every tp rank, tied ones by both of their stages, and
      // all by every data-parallel rank unless the optimizer is sharded, then once per instance.
      std::int64_t expected = name == "frozen" ? 0
                              : test.strategy == ShardingStrategy::kNoShard
                                  ? data_ranks
                                  : test.shape.dp_instances;
      if (name == "scale" || name == "one") expected *= test.shape.tp;
      if (name == "table" && test.shape.pp > 1) expected *= 2;
      for (int count : counts) ASSERT_EQ(count, expected) << name;
    }
  });
}

// A gradient that differs between data-parallel ranks, tied stages and uses.
double gradient_of(const std::string& name, std::int64_t element, int data_rank, std::int64_t stage,
                   int use) {
  return std::sin(static_cast<double>(element) + static_cast<double>(name.size()) * 10) +
         10 * data_rank + 100 * static_cast<double>(stage) + 0.5 * use;
}

void add_gradients(Rank& rank, int micro_batches = 2, double* squares = nullptr,
                   bool pauses = false) {
  rank.store->begin_step(micro_batches, squares);
  for (int use = 0; use < micro_batches; ++use) {
    for (const Param& param : rank.params) {
      if (!param.trains || param.name == "one") continue;
      rank.add_gradient(param, [&](std::int64_t element) {
        return gradient_of(param.name, element, rank.mesh.grads().rank(), rank.mesh.at().pp, use);
      });
    }
    if (pauses) rank.store->pause();
  }
  rank.store->finish_gradients();
}

double expected_gradient(const StoreCase& test, const std::string& name, std::int64_t element,
                         int micro_batches = 2) {
  if (name == "one" || name == "frozen") return 0;  // not used in the step
  double sum = 0;
  for (int data = 0; data < test.shape.dp * test.shape.cp; ++data) {
    for (int use = 0; use < micro_batches; ++use) {
      sum += gradient_of(name, element, data, 0, use);
      if (name == "table" && test.shape.pp > 1) {
        sum += gradient_of(name, element, data, test.shape.pp - 1, use);
      }
    }
  }
  return sum;
}

TEST(ParamStore, GradientsAreSummedOverUsesDataRanksAndTiedStages) {
  on_every_case([](const StoreCase& test) {
    run_ranks(test, [&](Rank& rank) {
      for (int step = 0; step < 2; ++step) {  // the second step overwrites the first
        add_gradients(rank, 2, nullptr, step == 1);
        for (const Param& param : rank.params) {
          if (!param.trains) continue;
          WeightLease lease = rank.store->local_gradient(param);
          for (const ElementRun& run : rank.runs(param)) {
            for (std::int64_t i = 0; i < run.count; ++i) {
              double expected = expected_gradient(test, param.name, run.global + i);
              ASSERT_NEAR(lease.view.as<double>()[run.local + i], expected,
                          1e-12 * std::abs(expected))
                  << param.name;
            }
          }
        }
      }
    });
  });
}

double expected_squares(const StoreCase& test, int micro_batches) {
  double sum = 0;
  for (const auto& [name, count] : std::map<std::string, std::int64_t>{
           {"table", 65}, {"fused", 39}, {"scale", 7}, {"row", 645}}) {
    for (std::int64_t i = 0; i < count; ++i) {
      sum += std::pow(expected_gradient(test, name, i, micro_batches), 2);
    }
  }
  return sum;
}

// Regardless of whether ops may add the squares of their gradients.
TEST(ParamStore, GradientNormCountsEachParameterOnce) {
  on_every_case([](const StoreCase& test) {
    for (int micro_batches : {2, 1}) {
      for (bool by_ops : {false, true}) {
        double expected = expected_squares(test, micro_batches);
        run_ranks(test, [&](Rank& rank) {
          double sum = 0;
          add_gradients(rank, micro_batches, by_ops ? &sum : nullptr);
          rank.store->add_gradient_squares(&sum);
          rank.mesh.world().all_reduce({&sum, Dtype::kF64, {1}}, Reduction::kSum, "squares").wait();
          EXPECT_NEAR(sum, expected, 1e-11 * expected) << micro_batches << " micro-batches";
        });
      }
    }
  });
}

TEST(ParamStore, OpsAddSquaresOfGradientsThatNobodyElseAddsTo) {
  auto squared_by_ops = [](const MeshShape& shape, ShardingStrategy strategy, int micro_batches) {
    int count = 0;
    run_ranks({shape, strategy, 200}, [&](Rank& rank) {
      double sum = 0;
      add_gradients(rank, micro_batches, &sum);
      if (rank.mesh.world().rank() == 0) count = rank.squared_by_ops;
    });
    return count;
  };
  EXPECT_EQ(squared_by_ops({1, 1, 1, 1}, ShardingStrategy::kNoShard, 1), 4);
  EXPECT_EQ(squared_by_ops({1, 1, 1, 1}, ShardingStrategy::kOptim, 1), 4);
  EXPECT_EQ(squared_by_ops({2, 1, 1, 1}, ShardingStrategy::kNoShard, 1), 4);
  // Not the tied embedding.
  EXPECT_EQ(squared_by_ops({1, 1, 1, 2}, ShardingStrategy::kNoShard, 1), 3);
  EXPECT_EQ(squared_by_ops({1, 1, 1, 1}, ShardingStrategy::kNoShard, 2), 0);
  EXPECT_EQ(squared_by_ops({1, 1, 2, 1}, ShardingStrategy::kNoShard, 1), 0);
  EXPECT_EQ(squared_by_ops({1, 2, 1, 1}, ShardingStrategy::kOptim, 1), 0);
}

// What each owner writes reaches all ranks, at once or, after a captured step that defers the
// gather to the next one, at the first use.
TEST(ParamStore, UpdatedValuesReachAllRanks) {
  on_every_case([](const StoreCase& test) {
    run_ranks(test, [&](Rank& rank) {
      bool later = rank.store->gathers_first();
      if (test.strategy != ShardingStrategy::kOptimGradsParams) {
        EXPECT_EQ(later, test.bucket_elements == 200);
      }
      std::map<std::string, Numbers> before;
      for (const Param& param : rank.params) {
        WeightLease lease = rank.store->local_value(param);
        const double* values = lease.view.as<double>();
        before[param.name].assign(values, values + param.local.numel());
      }
      for (const OptimRange& range : rank.store->optim_ranges()) {
        for (std::int64_t i = 0; i < range.value.numel(); ++i) {
          range.value.as<double>()[i] += 3 + static_cast<double>(range.offset + i);
        }
      }
      later ? rank.store->values_changed() : rank.store->gather_values();
      for (const Param& param : rank.params) {
        WeightLease lease = rank.store->local_value(param);
        for (std::int64_t i = 0; i < param.local.numel(); ++i) {
          double change = param.trains ? 3 + static_cast<double>(i) : 0;
          ASSERT_EQ(lease.view.as<double>()[i],
                    before[param.name][static_cast<std::size_t>(i)] + change)
              << param.name;
        }
      }
    });
  });
}

TEST(ParamStore, AGradientPartialOverTpIsSummedOverTp) {
  for (ShardingStrategy strategy : kStrategies) {
    run_ranks({{2, 1, 2, 1}, strategy, 100}, [&](Rank& rank) {
      const Param& scale = rank.params[2];
      Placement placement = Placement()
                                .with(Axis::kDp, PlaceState::kPartial)
                                .with(Axis::kCp, PlaceState::kPartial)
                                .with(Axis::kTp, PlaceState::kPartial);
      rank.store->begin_step(1);
      GradSink sink = rank.store->sink(scale, placement);
      for (int i = 0; i < 7; ++i) {
        sink.view.as<double>()[i] =
            1 + 10.0 * rank.mesh.tp().rank() + 100.0 * rank.mesh.grads().rank();
      }
      rank.store->done(scale, std::move(sink));
      rank.store->finish_gradients();
      WeightLease lease = rank.store->local_gradient(scale);
      for (int i = 0; i < 7; ++i) ASSERT_EQ(lease.view.as<double>()[i], 4 + 20 + 200);
    });
  }
}

// When a GEMM may cache the packed form of a weight: not for a single use, and again after each
// change of the values.
TEST(ParamStore, PackedWeightsLastUntilTheValuesChange) {
  run_thread_ranks(1, {20.0}, [](World& world) {
    ThreadPool pool(1);
    Arena arena(make_host_memory());
    Mesh mesh(world, MeshShape());
    Param weight = make("weight", {40, 24});
    StoreOptions options;
    options.dtype = Dtype::kBf16;
    ParamStore store({&weight}, mesh, arena, cpu_kernels(), Stream{&pool, nullptr}, options);
    store.initialise(7);
    Tensor x(arena, Dtype::kBf16, {64, 24}, "test"), y(arena, Dtype::kBf16, {64, 40}, "test");
    cpu_kernels().fill(Stream{&pool, nullptr}, x, 1);
    auto packed = [&](std::int64_t uses) {
      return store.packed(weight, {x, store.use(weight).view, y, false, true, 1, 0, {}}, uses);
    };
    auto multiply = [&] {
      GemmArgs gemm{x, store.use(weight).view, y, false, true, 1, 0, {}};
      gemm.packed_b = packed(1);
      cpu_kernels().gemm.gemm(Stream{&pool, nullptr}, gemm);
      return static_cast<double>(y.as<Bf16>()[0]);
    };
    store.begin_step(1);
    EXPECT_EQ(packed(1), nullptr);
    if (packed(3) == nullptr) GTEST_SKIP() << "this CPU multiplies bf16 as f32";
    store.begin_step(2);
    multiply();
    ASSERT_NE(packed(1), nullptr);
    EXPECT_TRUE(packed(1)->made);
    Tensor ones(arena, Dtype::kBf16, {40, 24}, "test");
    cpu_kernels().fill(Stream{&pool, nullptr}, ones, 1);
    store.set_local_value(weight, ones);
    EXPECT_FALSE(packed(1)->made);
    EXPECT_EQ(multiply(), 24);
    store.begin_step(2);
    EXPECT_TRUE(packed(1)->made) << "the values are the same";
    store.gather_values();
    EXPECT_FALSE(packed(1)->made);
  });
}

TEST(ParamStore, MistakesAreErrors) {
  run_ranks({{}, ShardingStrategy::kNoShard, 100}, [](Rank& rank) {
    const Param& scale = rank.params[2];
    Placement parts =
        Placement().with(Axis::kDp, PlaceState::kPartial).with(Axis::kCp, PlaceState::kPartial);
    rank.store->sink(scale, parts);
    expect_error(ErrorKind::kInternal, {"gradient of scale", "tp: partial"},
                 [&] { rank.store->sink(scale, parts.with(Axis::kTp, PlaceState::kPartial)); });
    // Already summed over ranks, or the same on all of them.
    for (Axis axis : {Axis::kDp, Axis::kCp}) {
      expect_error(
          ErrorKind::kInternal, {"gradient of row", "several times", std::string(name_of(axis))},
          [&] { rank.store->sink(rank.params[3], parts.with(axis, PlaceState::kReplicated)); });
    }
    Tensor wrong(rank.arena, Dtype::kF64, {6}, "test");
    expect_error(ErrorKind::kShape, {"weight scale", "[6]", "[7]"},
                 [&] { rank.store->set_local_value(scale, wrong); });
  });
}

}  // namespace
}  // namespace bev::test
