// A real training step on tp 2 x dp 2 x pp 2 with a fault on one rank: the run ends and names it.
#include "comm/fault.h"

#include <gtest/gtest.h>

#include "backend/cpu/cpu_kernels.h"
#include "tests/support/expect_error.h"
#include "tests/support/layouts.h"

namespace bev::test {
namespace {

// One step, number 5, with ZeRO-3 and sequence parallelism, which includes every kind of
// collective. Returns the number of calls of each rank, to place the fault.
std::vector<std::int64_t> train_step(const Fault& fault, double timeout) {
  EngineOptions options;
  options.model = tiny_gpt();
  options.parallel.tensor_model_parallel_size = 2;
  options.parallel.pipeline_model_parallel_size = 2;
  options.parallel.data_parallel_size = 2;
  options.parallel.sequence_parallel = true;
  options.parallel.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
  StepSamples samples = random_samples(options.model.vocab_size, 4, 11, 77);
  std::vector<std::int64_t> calls(8);
  run_thread_ranks(8, {timeout}, [&](World& world) {
    FaultWorld faulty(world, fault);
    Engine engine(faulty, cpu_kernels(), options);
    std::vector<MicroBatch> micro_batches = rank_micro_batches(engine.model().ctx(), samples, 1);
    engine.train_step(micro_batches, {5, 1e-2});
    calls[static_cast<std::size_t>(world.rank())] = faulty.calls();
  });
  return calls;
}

const Fault kNone = {-1, 1, Fault::Kind::kThrow};

TEST(FaultyStep, AThrowAnywhereIsTheCauseOfTheRun) {
  std::vector<std::int64_t> calls = train_step(kNone, 60);
  for (int rank = 0; rank < 8; ++rank) {
    std::int64_t last = calls[static_cast<std::size_t>(rank)];
    ASSERT_GT(last, 20);
    // Calls spread over the step, different ones on each rank.
    for (std::int64_t call = 1 + rank; call <= last; call += last / 6) {
      expect_error(ErrorKind::kComm, {concat("rank ", rank, ": injected fault at call ", call)},
                   [&] {
                     train_step({rank, call, Fault::Kind::kThrow}, 60);
                   });
    }
  }
}

TEST(FaultyStep, AStallIsReportedWithPlaceAndOp) {
  std::vector<std::int64_t> calls = train_step(kNone, 60);
  for (int rank : {0, 5}) {
    std::int64_t middle = calls[static_cast<std::size_t>(rank)] / 2;
    expect_error(ErrorKind::kComm,
                 {concat("rank ", rank, " never came: it is in step 5, "), " of micro-batch ",
                  ", layer ", ", op ", " has waited 1."},
                 [&] {
                   train_step({rank, middle, Fault::Kind::kStall}, 1.0);
                 });
  }
}

}  // namespace
}  // namespace bev::test
