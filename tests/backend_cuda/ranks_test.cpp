// Thread ranks that share the GPU give the results of one rank, and a fault ends the run as on the
// CPU.
#include <gtest/gtest.h>

#include "app/run_config.h"
#include "backend/cuda/runtime/queue.h"
#include "comm/fault.h"
#include "tests/support/devices.h"
#include "tests/support/expect_error.h"
#include "tests/support/layouts.h"
#include "verify/layouts.h"

namespace bev::test {
namespace {

class CudaRanks : public testing::Test {
 protected:
  void SetUp() override {
    cuda_ = find_device(TestDevice::kCuda);
    if (cuda_ == nullptr) GTEST_SKIP() << "no CUDA device";
  }
  TinyRun run_of(const ModelConfig& model) const {
    TinyRun run;
    run.model = model;
    run.dtype = Dtype::kF32;
    run.global_batch_size = 8;
    run.sequence_length = 16;
    run.kernels = cuda_;
    run.deterministic = true;
    return run;
  }
  void expect_one_ranks_answer(const ModelConfig& model, const char* layouts) const {
    TinyRun run = run_of(model);
    run.micro_batch_size = 8;
    LayoutAnswer expected = run_tiny(run);
    run.micro_batch_size = 1;
    for (const ParallelConfig& layout : parse_layouts(layouts, {})) {
      SCOPED_TRACE(layout_text(layout));
      RunConfig config;
      config.model = model;
      config.parallel = layout;
      ASSERT_EQ(config.resolve_layout(), std::vector<std::string>());
      run.parallel = config.parallel;
      LayoutAnswer actual = run_tiny(run);
      // Adam amplifies gradients that are zero except for rounding, so weights and what depends on
      // them are compared through the losses only.
      EXPECT_EQ(answer_difference(expected, actual, {1e-4, 0, 1e-3}), "");
      for (std::size_t i = 0; i < expected.losses.size(); ++i) {
        EXPECT_NEAR(actual.losses[i], expected.losses[i], 2e-3 * expected.losses[i])
            << "step " << i;
      }
    }
  }

  const Kernels* cuda_ = nullptr;
};

constexpr const char* kTwo =
    "tp2 tp2sp tp2sp,tpoverlap pp2 pp2,vpp2 pp2,zbh1 pp2,zbv cp2,p2p cp2,allgather cp2,a2a "
    "dp2 dp2,gradoverlap dp2,zero1,paramoverlap dp2,zero2,gradoverlap "
    "dp2,zero3,gradoverlap,paramoverlap";
constexpr const char* kFour =
    "tp4sp tp2sp,pp2 tp2,cp2,p2p pp2,dp2,zero1,gradoverlap,paramoverlap cp2,dp2,zero3 "
    "cp4,a2a2p2p2 dp4,zero2,instances2 pp4,zbh1";
constexpr const char* kEight =
    "tp2sp,pp2,dp2,zero3,gradoverlap,paramoverlap tp2sp,tpoverlap,cp2,p2p,pp2,vpp2 "
    "tp2,pp2,zbv,dp2,zero1,gradoverlap,paramoverlap cp2,allgather,pp2,zbh1,dp2,zero2 dp8,zero3";

TEST_F(CudaRanks, TwoGiveOneRanksAnswer) {
  expect_one_ranks_answer(uneven_gpt(), kTwo);
  expect_one_ranks_answer(uneven_llama(), kTwo);
}
TEST_F(CudaRanks, FourGiveOneRanksAnswer) {
  expect_one_ranks_answer(uneven_gpt(), kFour);
  expect_one_ranks_answer(uneven_llama(), kFour);
}
TEST_F(CudaRanks, EightGiveOneRanksAnswer) {
  expect_one_ranks_answer(uneven_gpt(), kEight);
  expect_one_ranks_answer(uneven_llama(), kEight);
}

// Expert parallelism with either dispatcher, with tokens dropped by capacity and a shared expert.
// Drops depend on the micro-batch, so micro-batches must be the same.
TEST_F(CudaRanks, SharingExpertsOutGivesOneRanksAnswer) {
  ModelConfig model = tiny_llama();
  model.moe.num_experts = 6;
  model.moe.topk = 2;
  model.moe.shared_expert_size = 16;
  for (double capacity : {0.0, 0.8}) {
    model.moe_training.capacity_factor = capacity;
    TinyRun run = run_of(model);
    LayoutAnswer expected = run_tiny(run);
    for (TokenDispatcher dispatcher : {TokenDispatcher::kAllGather, TokenDispatcher::kAllToAll}) {
      for (const char* text :
           {"dp2,ep2", "tp2sp,dp2,ep2etp2", "tp2,cp2,ep4etp1", "dp4,ep4,zero3"}) {
        SCOPED_TRACE(concat(text, ", capacity ", capacity));
        run.parallel = parse_layouts(text, {}).front();
        run.parallel.moe_token_dispatcher = dispatcher;
        run.parallel.moe_shared_expert_overlap = true;
        EXPECT_EQ(answer_difference(expected, run_tiny(run), {1e-4, 0, 1e-3}), "");
      }
    }
  }
}

// All-to-all buffers of fixed size, including too small ones, and interleaved micro-batches.
TEST_F(CudaRanks, HowExpertsExchangeChangesNoBit) {
  ModelConfig model = tiny_llama();
  model.moe.num_experts = 6;
  model.moe.topk = 2;
  model.moe.shared_expert_size = 16;
  for (const char* text : {"dp2,ep2", "pp2,dp2,ep2", "tp2sp,dp2,ep2etp2,zero3"}) {
    TinyRun run = run_of(model);
    run.dtype = Dtype::kBf16;
    run.parallel = parse_layouts(text, {}).front();
    LayoutAnswer plain = run_tiny(run);
    auto expect_same = [&] {
      LayoutAnswer other = run_tiny(run);
      EXPECT_EQ(plain.losses, other.losses);
      EXPECT_EQ(plain.weights, other.weights);
    };
    for (double factor : {0.3, 1.2, 8.0, 0.0}) {
      SCOPED_TRACE(concat(text, ", factor ", factor));
      run.parallel.moe_expert_rank_capacity_factor = factor;
      run.parallel.overlap_moe_expert_parallel_comm = run.parallel.delay_wgrad_compute = false;
      expect_same();
      run.parallel.overlap_moe_expert_parallel_comm = true;
      expect_same();
      run.parallel.delay_wgrad_compute = true;
      expect_same();
    }
  }
}

TEST_F(CudaRanks, WithExchangesOfFixedSizeNoStepWaitsForTheDevice) {
  EngineOptions options;
  options.model = tiny_llama();
  options.model.moe.num_experts = 6;
  options.dtype = Dtype::kBf16;
  for (double factor : {0.0, 8.0}) {
    options.parallel = parse_layouts("dp2,ep2", {}).front();
    options.parallel.moe_expert_rank_capacity_factor = factor;
    run_thread_ranks(2, {60.0}, [&](World& world) {
      Engine engine(world, *cuda_, options);
      std::vector<MicroBatch> batches = rank_micro_batches(
          engine.model().ctx(), random_samples(options.model.vocab_size, 4, 16, 3), 1);
      engine.train_step(batches, {1, 1e-3, 0.1, 1.0, 1.0});
      CudaQueue& queue = queue_of(engine.model().ctx().stream);
      std::int64_t waits = queue.host_waits();
      engine.begin_step({batches}, {2, 1e-3, 0.1, 1.0, 1.0});
      EXPECT_EQ(queue.host_waits() > waits, factor == 0);
      EXPECT_FALSE(engine.finish_step().result.redone);
    });
  }
}

TEST_F(CudaRanks, DeterministicModeGivesTheSameBitsTwice) {
  for (const ParallelConfig& layout : parse_layouts(kEight, {})) {
    RunConfig config;
    config.model = uneven_llama();
    config.parallel = layout;
    ASSERT_EQ(config.resolve_layout(), std::vector<std::string>());
    TinyRun run = run_of(uneven_llama());
    run.parallel = config.parallel;
    run.dtype = Dtype::kBf16;
    LayoutAnswer first = run_tiny(run), second = run_tiny(run);
    EXPECT_EQ(first.losses, second.losses) << layout_text(layout);
    EXPECT_EQ(first.weights, second.weights) << layout_text(layout);
  }
}

class FaultFilter final : public WorldFilter {
 public:
  explicit FaultFilter(const Fault& fault) : fault_(fault) {}
  std::unique_ptr<World> wrap(World& world) override {
    return std::make_unique<FaultWorld>(world, fault_);
  }

 private:
  Fault fault_;
};

TEST_F(CudaRanks, AFaultEndsTheRunAndIsNamed) {
  TinyRun run = run_of(tiny_gpt());
  run.parallel = parse_layouts("tp2sp,pp2,dp2,zero3", {}).front();
  for (std::int64_t call : {3, 100, 150}) {
    FaultFilter throwing({5, call, Fault::Kind::kThrow});
    run.filter = &throwing;
    expect_error(ErrorKind::kComm, {concat("rank 5: injected fault at call ", call)},
                 [&] { run_tiny(run); });
  }
  FaultFilter stalling({5, 120, Fault::Kind::kStall});
  run.filter = &stalling;
  run.timeout_seconds = 3;
  expect_error(ErrorKind::kComm, {"rank 5 never came", " has waited 3."}, [&] { run_tiny(run); });
}

}  // namespace
}  // namespace bev::test
