// Pairwise testing of options: every pair of values that is legal on at most 8 ranks occurs in some
// run, and each run gives the result of one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/layouts.h"
#include "tests/support/option_pairs.h"

namespace bev::test {
namespace {

constexpr std::int64_t kSamples = 8, kTokens = 9;

template <std::int64_t Size, bool Sequence = false, bool Overlap = false>
void tensor(RunConfig& run) {
  run.parallel.tensor_model_parallel_size = Size;
  run.parallel.sequence_parallel = Sequence;
  run.parallel.tp_comm_overlap = Overlap;
}
Option tensor_option() {
  return {"tensor",
          {{"tp1", tensor<1>},
           {"tp2", tensor<2>},
           {"tp2 sp", tensor<2, true>},
           {"tp2 sp overlap", tensor<2, true, true>},
           {"tp4", tensor<4>},
           {"tp4 sp", tensor<4, true>},
           {"tp4 sp overlap", tensor<4, true, true>}}};
}

template <std::int64_t Size, PipelineSchedule Schedule = PipelineSchedule::k1F1B,
          std::int64_t Chunks = 0>
void pipeline(RunConfig& run) {
  run.parallel.pipeline_model_parallel_size = Size;
  run.parallel.pipeline_schedule = Schedule;
  run.parallel.num_virtual_stages_per_pipeline_rank = Chunks;
}
Option pipeline_option() {
  using S = PipelineSchedule;
  return {"pipeline",
          {{"pp1", pipeline<1>},
           {"pp2", pipeline<2>},
           {"pp2 vpp2", pipeline<2, S::k1F1B, 2>},
           {"pp2 zb-h1", pipeline<2, S::kZeroBubbleH1>},
           {"pp2 zb-v", pipeline<2, S::kZeroBubbleV>},
           {"pp4", pipeline<4>},
           {"pp4 vpp2", pipeline<4, S::k1F1B, 2>},
           {"pp4 zb-h1", pipeline<4, S::kZeroBubbleH1>},
           {"pp4 zb-v", pipeline<4, S::kZeroBubbleV>}}};
}

template <std::int64_t Size>
void data(RunConfig& run) {
  run.parallel.data_parallel_size = Size;
}
template <ShardingStrategy Strategy>
void sharding(RunConfig& run) {
  run.parallel.data_parallel_sharding_strategy = Strategy;
}
template <bool On>
void data_overlap(RunConfig& run) {
  run.parallel.overlap_grad_reduce = run.parallel.overlap_param_gather = On;
  // Several buckets, otherwise nothing overlaps.
  if (On) run.parallel.ddp_bucket_size = 500;
}
template <std::int64_t Instances>
void instances(RunConfig& run) {
  run.parallel.num_distributed_optimizer_instances = Instances;
}
std::vector<Option> data_options() {
  using S = ShardingStrategy;
  return {{"data", {{"dp1", data<1>}, {"dp2", data<2>}, {"dp4", data<4>}}},
          {"sharding",
           {{"zero0", sharding<S::kNoShard>},
            {"zero1", sharding<S::kOptim>},
            {"zero2", sharding<S::kOptimGrads>},
            {"zero3", sharding<S::kOptimGradsParams>}}},
          {"overlap", {{"sums after", data_overlap<false>}, {"sums beside", data_overlap<true>}}},
          {"instances", {{"1 instance", instances<1>}, {"2 instances", instances<2>}}}};
}

void context(RunConfig& run, std::int64_t size, const char* kind) {
  run.parallel.context_parallel_size = size;
  run.parallel.cp_comm_type = {kind};
  run.parallel.hierarchical_context_parallel_sizes.clear();
}
Option context_option() {
  return {"context",
          {{"cp1", [](RunConfig& run) { context(run, 1, "p2p"); }},
           {"cp2 p2p", [](RunConfig& run) { context(run, 2, "p2p"); }},
           {"cp2 a2a", [](RunConfig& run) { context(run, 2, "a2a"); }},
           {"cp2 allgather", [](RunConfig& run) { context(run, 2, "allgather"); }},
           {"cp4 p2p", [](RunConfig& run) { context(run, 4, "p2p"); }},
           {"cp4 a2a", [](RunConfig& run) { context(run, 4, "a2a"); }},
           {"cp4 allgather", [](RunConfig& run) { context(run, 4, "allgather"); }},
           {"cp4 a2a+p2p", [](RunConfig& run) {
              context(run, 4, "a2a+p2p");
              run.parallel.hierarchical_context_parallel_sizes = {2, 2};
            }}}};
}

template <RecomputeGranularity Granularity, RecomputeMethod Method = RecomputeMethod::kUniform>
void recompute(RunConfig& run) {
  run.parallel.recompute_granularity = Granularity;
  run.parallel.recompute_method = Method;
  run.parallel.recompute_modules = {"core_attn", "layernorm", "activation"};
}
Option recompute_option() {
  using G = RecomputeGranularity;
  return {"recompute",
          {{"all kept", recompute<G::kNone>},
           {"full uniform", recompute<G::kFull>},
           {"full block", recompute<G::kFull, RecomputeMethod::kBlock>},
           {"selective parts", recompute<G::kSelective>},
           {"selective mlp", [](RunConfig& run) {
              recompute<G::kSelective>(run);
              run.parallel.recompute_modules = {"mlp"};
            }}}};
}

template <std::int64_t Size>
void micro_batch(RunConfig& run) {
  run.batch.global_batch_size = kSamples;
  run.batch.micro_batch_size = Size > 0 ? Size : kSamples / run.parallel.data_parallel_size;
}

const OptionSpace& dense_space() {
  static const OptionSpace whole = [] {
    std::vector<Option> options = {
        {"model",
         {{"gpt", [](RunConfig& run) { run.model = uneven_gpt(); }},
          {"llama", [](RunConfig& run) { run.model = uneven_llama(); }}}},
        tensor_option(),
        pipeline_option(),
        context_option(),
        recompute_option()};
    for (Option& option : data_options()) options.push_back(std::move(option));
    options.push_back({"accumulation",
                       {{"micro-batches of 1", micro_batch<1>},
                        {"of 2", micro_batch<2>},
                        {"1", micro_batch<0>}}});
    options.push_back(
        {"mapping",
         {{"pp outermost", [](RunConfig& run) { run.parallel.use_tp_pp_dp_mapping = false; }},
          {"dp outermost", [](RunConfig& run) { run.parallel.use_tp_pp_dp_mapping = true; }}}});
    return OptionSpace(std::move(options), 8);
  }();
  return whole;
}

// A subset of the values of an option: a space is enumerated as a whole, so it must not be too
// large.
Option some(Option option, const std::vector<std::string>& names) {
  std::erase_if(option.values, [&](const OptionValue& value) {
    return std::ranges::find(names, value.name) == names.end();
  });
  return option;
}

template <std::int64_t Size>
void experts(RunConfig& run) {
  run.parallel.expert_model_parallel_size = Size;
}
template <std::int64_t Size>
void expert_tensor(RunConfig& run) {
  run.parallel.expert_tensor_parallel_size = Size;
}
template <TokenDispatcher Dispatcher>
void dispatcher(RunConfig& run) {
  run.parallel.moe_token_dispatcher = Dispatcher;
  run.parallel.moe_shared_expert_overlap = run.model.moe.shared_expert_size > 0;
}
std::vector<Option> expert_options() {
  return {
      {"experts",
       {{"ep1", experts<1>}, {"ep2", experts<2>}, {"ep4", experts<4>}, {"ep8", experts<8>}}},
      {"of an expert",
       {{"etp as tp", expert_tensor<0>},
        {"etp1", expert_tensor<1>},
        {"etp2", expert_tensor<2>},
        {"etp4", expert_tensor<4>}}},
      {"exchange",
       {{"all-to-all", dispatcher<TokenDispatcher::kAllToAll>},
        {"all-gather", dispatcher<TokenDispatcher::kAllGather>},
        {"fixed sizes", [](RunConfig& run) { run.parallel.moe_expert_rank_capacity_factor = 1.2; }},
        {"interleaved", [](RunConfig& run) {
           run.parallel.overlap_moe_expert_parallel_comm = run.parallel.delay_wgrad_compute = true;
         }}}}};
}

const OptionSpace& expert_space() {
  static const OptionSpace whole = [] {
    Option recomputed = some(recompute_option(), {"all kept", "full uniform", "selective mlp"});
    recomputed.values.push_back({"selective experts", [](RunConfig& run) {
                                   recompute<RecomputeGranularity::kSelective>(run);
                                   run.parallel.recompute_modules = {"moe_act", "layernorm"};
                                 }});
    std::vector<Option> options = {
        {"model",
         {{"mixtral",
           [](RunConfig& run) {
             run.model = mixtral_like();
             run.model.num_attention_heads = 8;
           }},
          {"deepseek", [](RunConfig& run) { run.model = deepseek_like(); }},
          {"gpt-oss", [](RunConfig& run) { run.model = gpt_oss_like(); }}}},
        some(tensor_option(), {"tp1", "tp2", "tp2 sp", "tp4 sp"}),
        some(pipeline_option(), {"pp1", "pp2", "pp2 vpp2", "pp2 zb-h1", "pp2 zb-v"}),
        some(context_option(), {"cp1", "cp2 p2p", "cp2 allgather"}),
        recomputed};
    for (Option& option : data_options()) {
      if (option.name != "instances") options.push_back(std::move(option));
    }
    options.push_back(
        {"accumulation", {{"micro-batches of 1", micro_batch<1>}, {"of 2", micro_batch<2>}}});
    for (Option& option : expert_options()) options.push_back(std::move(option));
    return OptionSpace(std::move(options), 8);
  }();
  return whole;
}

TinyRun one_rank(const RunConfig& config, Dtype dtype, std::int64_t steps) {
  TinyRun run;
  run.model = config.model;
  run.dtype = dtype;
  run.steps = steps;
  run.global_batch_size = kSamples;
  // Router losses depend on the micro-batch; nothing else depends on its size.
  run.micro_batch_size = config.model.moe.any() ? config.batch.micro_batch_size : kSamples;
  run.sequence_length = kTokens;
  return run;
}

// Cached by the family of the model, so that each is computed once.
const LayoutAnswer& expected_answer(const TinyRun& run) {
  static std::map<std::tuple<std::string, Dtype, std::int64_t>, LayoutAnswer> answers;
  auto [found, added] = answers.try_emplace({run.model.family, run.dtype, run.micro_batch_size});
  if (added) found->second = run_tiny(run);
  return found->second;
}

// The runs are distributed over tests, which the shards of ctest distribute over cores.
constexpr std::int64_t kSlices = 8;
class OptionPairs : public testing::TestWithParam<std::int64_t> {
 protected:
  void expect_same(const OptionSpace& space, Dtype dtype, std::int64_t steps,
                   const AnswerTolerance& tolerance) {
    std::vector<Choice> runs = space.cover();
    for (auto i = static_cast<std::size_t>(GetParam()); i < runs.size(); i += kSlices) {
      RunConfig config = space.configure(runs[i]).first;
      TinyRun run = one_rank(config, dtype, steps);
      const LayoutAnswer& expected = expected_answer(run);
      run.parallel = config.parallel;
      run.micro_batch_size = config.batch.micro_batch_size;
      EXPECT_EQ(answer_difference(expected, run_tiny(run), tolerance), "") << space.text(runs[i]);
    }
  }
};

// `least` is the fraction of pairs that must be legal.
void expect_every_legal_pair(const OptionSpace& space, double least) {
  std::vector<bool> covered(static_cast<std::size_t>(space.pair_count()));
  std::vector<Choice> runs = space.cover();
  for (const Choice& run : runs) {
    EXPECT_EQ(space.configure(run).second, std::vector<std::string>()) << space.text(run);
    for (std::int64_t pair : space.pairs_of(run)) covered[static_cast<std::size_t>(pair)] = true;
  }
  std::int64_t legal = 0;
  for (std::size_t i = 0; i < covered.size(); ++i) {
    bool possible = !space.witnesses()[i].empty();
    legal += possible;
    EXPECT_EQ(covered[i], possible) << space.text_of_pair(static_cast<std::int64_t>(i));
  }
  std::printf("%zu runs for %lld pairs; %lld more are not legal\n", runs.size(),
              static_cast<long long>(legal), static_cast<long long>(space.pair_count() - legal));
  EXPECT_GE(static_cast<double>(legal), least * static_cast<double>(space.pair_count()));
}

// Few are impossible: more than 8 ranks, indivisible heads, one micro-batch with vpp.
TEST(OptionSpace, EveryLegalPairOccurs) { expect_every_legal_pair(dense_space(), 0.85); }
TEST(OptionSpace, EveryLegalPairOfExpertsOccurs) { expect_every_legal_pair(expert_space(), 0.85); }

TEST_P(OptionPairs, GiveOneRanksAnswerInF64) { expect_same(dense_space(), Dtype::kF64, 3, {}); }
TEST_P(OptionPairs, OfExpertsGiveOneRanksAnswerInF64) {
  expect_same(expert_space(), Dtype::kF64, 3, {});
}

// Weights are not compared: Adam turns the rounding of a gradient that is zero in exact arithmetic
// (the bias of k) into full steps.
TEST_P(OptionPairs, GiveOneRanksGradientsInF32) {
  expect_same(dense_space(), Dtype::kF32, 1, {1e-5, 0, 0});
}

INSTANTIATE_TEST_SUITE_P(Slices, OptionPairs, testing::Range<std::int64_t>(0, kSlices));

}  // namespace
}  // namespace bev::test
