// When the parameter store communicates: what is posted when, what is waited for, and what stays in
// memory.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_kernels.h"
#include "base/thread_pool.h"
#include "data/batch.h"
#include "parallel/engine.h"
#include "tests/parallel/late_world.h"
#include "tests/support/expect_error.h"
#include "tests/support/layouts.h"

namespace bev::test {
namespace {

using Strategy = ShardingStrategy;

// A model with an embedding, three layers of two parameters and a final norm: 5 FSDP units, 8
// parameters.
std::vector<Param> make_params() {
  std::vector<Param> params;
  for (const char* name :
       {"embedding.weight", "decoder.layers.0.norm", "decoder.layers.0.linear",
        "decoder.layers.1.norm", "decoder.layers.1.linear", "decoder.layers.10.norm",
        "decoder.layers.10.linear", "decoder.final_layernorm.weight"}) {
    Param param;
    param.name = name;
    param.shape = {100};
    param.init = {InitKind::kNormal, 1};
    params.push_back(param);
  }
  return params;
}
constexpr int kUnitOf[] = {0, 1, 1, 2, 2, 3, 3, 4};
constexpr int kFirstOf[] = {0, 1, 3, 5, 7};  // a parameter of each unit

struct Rig {
  Rig(World& world, const MeshShape& shape, StoreOptions options)
      : late(world), mesh(late, shape), arena(make_host_memory()), pool(1), params(make_params()) {
    std::vector<Param*> list;
    for (Param& param : params) list.push_back(&param);
    options.dtype = options.grad_dtype = Dtype::kF64;
    store = std::make_unique<ParamStore>(list, mesh, arena, cpu_kernels(), Stream{&pool, nullptr},
                                         options);
    store->initialise(5);
    log().clear();
  }
  CommLog& log() { return late.log(); }
  void add_gradient(int index, double value) {
    const Param& param = params[static_cast<std::size_t>(index)];
    GradSink sink = store->sink(
        param,
        Placement().with(Axis::kDp, PlaceState::kPartial).with(Axis::kCp, PlaceState::kPartial));
    for (int i = 0; i < 100; ++i) {
      double& to = sink.view.as<double>()[i];
      to = (sink.beta == 0 ? 0 : to) + value;
    }
    store->done(param, std::move(sink));
  }
  void expect_gradients(double value) {
    for (const Param& param : params) {
      WeightLease gradient = store->local_gradient(param);
      for (int i = 0; i < 100; ++i) ASSERT_EQ(gradient.view.as<double>()[i], value) << param.name;
    }
  }
  WeightLease use_unit(int unit) {
    return store->use(params[static_cast<std::size_t>(kFirstOf[unit])]);
  }
  std::int64_t bytes_of(const std::string& tag) const {
    for (const auto& [name, bytes] : arena.by_tag()) {
      if (name == tag) return static_cast<std::int64_t>(bytes);
    }
    return 0;
  }
  LateWorld late;
  Mesh mesh;
  Arena arena;
  ThreadPool pool;
  std::vector<Param> params;
  std::unique_ptr<ParamStore> store;
};

template <class Body>
void run_ranks(const MeshShape& shape, const StoreOptions& options, const Body& body) {
  run_thread_ranks(static_cast<int>(shape.size()), {20.0}, [&](World& world) {
    Rig rig(world, shape, options);
    body(rig);
  });
}

StoreOptions options_of(Strategy strategy, bool overlap, std::int64_t bucket_elements = 1) {
  StoreOptions options;
  options.strategy = strategy;
  options.overlap_reduce = options.overlap_gather = overlap;
  options.bucket_elements = bucket_elements;
  return options;
}
constexpr MeshShape kTwoRanks{1, 1, 2, 1};

// One reduction per bucket and step, and none before the last micro-batch.
TEST(GradientOverlap, WholeGradientsArePostedWhenTheLastMicroBatchCompletesABucket) {
  for (Strategy strategy : {Strategy::kNoShard, Strategy::kOptim}) {
    for (bool overlap : {false, true}) {
      run_ranks(kTwoRanks, options_of(strategy, overlap, 150), [&](Rig& rig) {
        std::string group = strategy == Strategy::kNoShard ? "dp x cp" : "shards";
        for (int step = 0; step < 2; ++step) {
          rig.log().clear();
          rig.store->begin_step(3);
          for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
            for (int i = 7; i >= 0; --i) {
              rig.add_gradient(i, 1 + micro_batch + step);
              // Buckets of two parameters: the first of the two in order of use completes it.
              std::int64_t complete = micro_batch == 2 && overlap ? (8 - i) / 2 : 0;
              ASSERT_EQ(rig.log().posts(group), complete);
              ASSERT_EQ(rig.log().pending(group), complete);
            }
          }
          rig.store->finish_gradients();
          EXPECT_EQ(rig.log().posts(group), 4);
          EXPECT_EQ(rig.log().pending(group), 0);
          rig.expect_gradients(2 * (6 + 3 * step));
        }
      });
    }
  }
}

// With bf16 on the wire, the copies of a bucket are freed before those of the next are made.
TEST(GradientOverlap, Bf16CopiesOfOneBucketAreKeptAtATime) {
  for (Strategy strategy : {Strategy::kNoShard, Strategy::kOptim}) {
    for (bool overlap : {false, true}) {
      StoreOptions options = options_of(strategy, overlap);
      options.bf16_wire = true;
      run_ranks(kTwoRanks, options, [&](Rig& rig) {
        rig.arena.reset_peak();
        auto kept = static_cast<std::int64_t>(rig.arena.in_use());
        rig.store->begin_step(1);
        for (int i = 7; i >= 0; --i) {
          rig.add_gradient(i, 1);
          // 128 elements sent and as many received.
          ASSERT_EQ(rig.bytes_of("gradients on the wire"), overlap ? 2 * 128 * 2 : 0);
        }
        rig.store->finish_gradients();
        EXPECT_EQ(rig.bytes_of("gradients on the wire"), 0);
        EXPECT_EQ(static_cast<std::int64_t>(rig.arena.peak()) - kept, 2 * 128 * 2);
        rig.expect_gradients(2);
      });
    }
  }
}

// A gradient added after its bucket was sent would be lost.
TEST(GradientOverlap, AGradientThatComesTooOftenIsAnError) {
  run_ranks(kTwoRanks, options_of(Strategy::kNoShard, true), [](Rig& rig) {
    rig.store->begin_step(1);
    rig.add_gradient(0, 1);
    expect_error(ErrorKind::kInternal, {"embedding.weight", "number of uses"},
                 [&] { rig.add_gradient(0, 1); });
  });
}

TEST(GradientOverlap, AParameterUsedTwiceIsAwaitedTwice) {
  run_ranks(kTwoRanks, options_of(Strategy::kNoShard, true), [](Rig& rig) {
    rig.params[0].uses = 2;
    rig.store->begin_step(1);
    rig.add_gradient(0, 1);
    EXPECT_EQ(rig.log().posts("dp x cp"), 0);
    rig.add_gradient(0, 1);
    EXPECT_EQ(rig.log().posts("dp x cp"), 1);
  });
}

// Replicas are reduced once per step, for any number of micro-batches.
TEST(GradientOverlap, ReplicasMeetOncePerBucketAndStep) {
  for (Strategy strategy : {Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    MeshShape shape{1, 1, 4, 1};
    shape.dp_instances = 2;
    run_ranks(shape, options_of(strategy, true), [&](Rig& rig) {
      rig.store->begin_step(3);
      for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
        for (int i = 7; i >= 0; --i) rig.add_gradient(i, 1);
      }
      EXPECT_EQ(rig.log().posts("replicas"), 0);
      rig.store->finish_gradients();
      bool once = strategy == Strategy::kOptim;
      EXPECT_EQ(rig.log().posts("replicas", "all_reduce"), once ? 8 : 5);
      EXPECT_EQ(rig.log().posts("shards", "reduce_scatter"), once ? 8 : 15);
      EXPECT_EQ(rig.log().posts("dp x cp"), 0);
      rig.expect_gradients(12);
    });
  }
}

// A unit is reduced once per micro-batch, at most one is in flight, and its memory is freed
// afterwards.
TEST(GradientOverlap, UnitsAreExchangedPerMicroBatch) {
  for (bool overlap : {false, true}) {
    run_ranks(kTwoRanks, options_of(Strategy::kOptimGrads, overlap), [&](Rig& rig) {
      rig.store->begin_step(2);
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        for (int i = 7; i >= 0; --i) {
          rig.add_gradient(i, 1);
          bool unit_ends = i == 0 || kUnitOf[i - 1] != kUnitOf[i];
          std::int64_t units = 5 * micro_batch + (5 - kUnitOf[i]) - (unit_ends ? 0 : 1);
          ASSERT_EQ(rig.log().posts("shards", "reduce_scatter"), units);
          ASSERT_EQ(rig.log().pending("shards"), overlap && units > 0 ? 1 : 0);
          bool open = !unit_ends || (overlap && units > 0);
          ASSERT_EQ(rig.bytes_of("unreduced gradients") > 0, open);
        }
      }
      rig.store->finish_gradients();
      EXPECT_EQ(rig.bytes_of("unreduced gradients"), 0);
      rig.expect_gradients(4);
    });
  }
}

// Zero-bubble schedule: gradients of norms arrive in the backward, deferred wgrad of linears later.
TEST(GradientOverlap, UnitsTakeGradientsThatRunAhead) {
  for (bool overlap : {false, true}) {
    run_ranks(kTwoRanks, options_of(Strategy::kOptimGradsParams, overlap), [&](Rig& rig) {
      rig.store->begin_step(3);
      auto backward = [&](double value) {
        for (int i : {7, 5, 3, 1, 0}) rig.add_gradient(i, value);
      };
      auto weights = [&](double value) {
        for (int i : {6, 4, 2}) rig.add_gradient(i, value);
      };
      backward(1);
      backward(10);
      weights(1);
      backward(100);
      weights(10);
      weights(100);
      EXPECT_EQ(rig.log().posts("shards", "reduce_scatter"), 15);
      rig.store->finish_gradients();
      EXPECT_EQ(rig.log().posts("shards", "reduce_scatter"), 15);
      rig.expect_gradients(222);
    });
  }
}

TEST(GatherOverlap, AFirstUseWaitsForItsOwnBucket) {
  run_ranks(kTwoRanks, options_of(Strategy::kOptim, true), [](Rig& rig) {
    for (const OptimRange& range : rig.store->optim_ranges()) {
      for (std::int64_t i = 0; i < range.value.numel(); ++i) range.value.as<double>()[i] = 3;
    }
    rig.store->gather_values();
    EXPECT_EQ(rig.log().pending("shards", "all_gather"), 8);
    for (int i = 0; i < 8; ++i) {
      WeightLease lease = rig.store->use(rig.params[static_cast<std::size_t>(i)]);
      EXPECT_EQ(rig.log().pending("shards", "all_gather"), 7 - i);
      for (int j = 0; j < 100; ++j) ASSERT_EQ(lease.view.as<double>()[j], 3);
    }
    EXPECT_EQ(rig.log().posts("shards"), 8);
  });
}

// A run may end right after an update, in any order of the ranks.
TEST(GatherOverlap, GathersOnTheirWayMayBeLeft) {
  for (int repeat = 0; repeat < 10; ++repeat) {
    run_thread_ranks(3, {60.0}, [&](World& world) {
      EngineOptions options;
      options.model = tiny_gpt();
      options.parallel.data_parallel_size = 3;
      options.parallel.data_parallel_sharding_strategy = Strategy::kOptim;
      options.parallel.ddp_bucket_size = 100;
      options.parallel.overlap_param_gather = true;
      Engine engine(world, cpu_kernels(), options);
      std::vector<MicroBatch> batches =
          rank_micro_batches(engine.model().ctx(), random_samples(61, 3, 11, 3), 1);
      engine.train_step(batches, {1, 1e-2, 0.1, 1.0, 1.0});
    });
  }
}

// Forward, backward; the second step prefetches what the first one used.
TEST(GatherOverlap, TheNextUnitIsOnItsWayBeforeItIsUsed) {
  const std::vector<int> order = {0, 1, 2, 3, 4, 3, 2, 1, 0, 1, 2, 3, 4, 3, 2, 1};
  for (bool overlap : {false, true}) {
    run_ranks(kTwoRanks, options_of(Strategy::kOptimGradsParams, overlap), [&](Rig& rig) {
      for (int step = 0; step < 3; ++step) {
        rig.log().clear();
        rig.store->begin_step(2);
        for (std::size_t i = 0; i < order.size(); ++i) {
          rig.use_unit(order[i]);
          bool ahead = overlap && step > 0 && i + 1 < order.size();
          ASSERT_EQ(rig.log().pending("shards", "all_gather"), ahead ? 1 : 0);
          ASSERT_EQ(rig.log().posts("shards"), static_cast<std::int64_t>(i + 1 + ahead));
          if (ahead) {
            const std::string& coming = rig.log().events().back().label;
            int next = kFirstOf[order[i + 1]];
            EXPECT_EQ(coming, rig.params[static_cast<std::size_t>(next)].name);
          }
          // The unit before has been freed. An embedding takes 128 elements, a layer 256.
          auto bytes = [&](int unit) { return unit >= 1 && unit <= 3 ? 256 * 8 : 128 * 8; };
          ASSERT_EQ(rig.bytes_of("gathered weights"),
                    bytes(order[i]) + (ahead ? bytes(order[i + 1]) : 0));
        }
        rig.store->finish_gradients();
        EXPECT_EQ(rig.bytes_of("gathered weights"), 0);
      }
    });
  }
}

TEST(GatherOverlap, ALeaseOutlivesTheUnitsTurn) {
  run_ranks(kTwoRanks, options_of(Strategy::kOptimGradsParams, false), [](Rig& rig) {
    WeightLease lease = rig.use_unit(0);
    double value = lease.view.as<double>()[7];
    rig.use_unit(1);
    rig.use_unit(2);
    EXPECT_EQ(lease.view.as<double>()[7], value);
    EXPECT_EQ(rig.bytes_of("gathered weights"), (128 + 256) * 8);
  });
}

// With steps that differ from the one before, and with updates, values are always current.
TEST(GatherOverlap, WrongGuessesAndUpdatesNeverGiveOldValues) {
  run_ranks(kTwoRanks, options_of(Strategy::kOptimGradsParams, true), [](Rig& rig) {
    const std::vector<std::vector<int>> steps = {
        {0, 1, 2, 3, 4, 3}, {0, 1, 3, 2, 2, 4}, {4, 0, 1, 3, 2, 1, 0, 4}, {0}, {0, 1, 2}};
    double now = 1;
    auto update = [&] {
      ++now;
      for (const OptimRange& range : rig.store->optim_ranges()) {
        for (std::int64_t i = 0; i < range.value.numel(); ++i) range.value.as<double>()[i] = now;
      }
      rig.store->gather_values();
    };
    auto use_all = [&](const std::vector<int>& units) {
      for (int unit : units) {
        WeightLease lease = rig.use_unit(unit);
        for (int i = 0; i < 100; ++i) ASSERT_EQ(lease.view.as<double>()[i], now);
      }
    };
    update();
    for (const std::vector<int>& units : steps) {
      rig.store->begin_step(1);
      use_all(units);
      rig.store->finish_gradients();
      use_all({4, 3});  // evaluation
      update();
      use_all({3, 4});
    }
    Tensor value(rig.arena, Dtype::kF64, {100}, "test");
    for (int i = 0; i < 100; ++i) value.as<double>()[i] = -1;
    rig.store->set_local_value(rig.params[7], value);
    WeightLease lease = rig.use_unit(4);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(lease.view.as<double>()[i], -1);
  });
}

// A whole model: embedding, four layers, final norm, output layer; two micro-batches.
TEST(GatherOverlap, AModelGathersEachUnitOncePerPass) {
  for (bool overlap : {false, true}) {
    run_thread_ranks(2, {60.0}, [&](World& world) {
      LateWorld late(world);
      EngineOptions options;
      options.model = tiny_llama();
      options.parallel.data_parallel_size = 2;
      options.parallel.data_parallel_sharding_strategy = Strategy::kOptimGradsParams;
      options.parallel.overlap_grad_reduce = options.parallel.overlap_param_gather = overlap;
      Engine engine(late, cpu_kernels(), options);
      std::vector<MicroBatch> batches =
          rank_micro_batches(engine.model().ctx(), random_samples(53, 4, 11, 3), 1);
      for (int step = 0; step < 2; ++step) {
        late.log().clear();
        engine.train_step(batches, {step + 1, 1e-2, 0.1, 1.0, 1.0});
        // Seven units in the forward; in the backward the norm and the layers, as embeddings need
        // no weights there.
        EXPECT_EQ(late.log().posts("shards", "all_gather"), 2 * (7 + 5));
        EXPECT_EQ(late.log().posts("shards", "reduce_scatter"), 2 * 7);
        EXPECT_EQ(late.log().pending("shards"), 0);
      }
    });
  }
}

}  // namespace
}  // namespace bev::test
