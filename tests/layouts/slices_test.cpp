// Custom architectures and objectives give the result of one rank under every kind of layout:
// gradients of the first step to 1e-11, weights after three steps to 1e-9, in f64.
#include "tests/layouts/slices.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "backend/cpu/cpu_kernels.h"
#include "infer/generate.h"
#include "nn/adapter.h"
#include "ops/loss.h"
#include "tests/support/layouts.h"
#include "verify/layouts.h"

namespace bev::test {
namespace {

void expect_one_ranks_answer(TinyRun run, const std::string& layouts) {
  LayoutAnswer expected = run_tiny(run);
  EXPECT_NE(expected.losses[0], expected.losses[2]);
  std::vector<ParallelConfig> all = parse_layouts(layouts, {});
  for (const ParallelConfig& layout : all) {
    run.parallel = layout;
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "") << layout_text(layout);
  }
  for (ParallelConfig layout : {ParallelConfig(), all.front()}) {
    layout.recompute_granularity = RecomputeGranularity::kFull;
    layout.recompute_num_layers = 1;
    run.parallel = layout;
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "") << "recompute";
  }
}

constexpr const char* kLayouts = "tp2 tp2sp pp2 cp2 cp3 dp2zero3 tp2cp2 pp2dp2zero3";

ModelConfig hybrid_model() {
  ModelConfig model = tiny_llama();
  model.num_layers = 4;
  model.architecture = hybrid_architecture();
  return model;
}

TEST(Slices, RecurrenceBetweenAttentionLayers) {
  TinyRun run;
  run.model = hybrid_model();
  expect_one_ranks_answer(run, concat(kLayouts, " pp2vpp2"));
}

// Log-probabilities of tokens 1.. of a sequence by one forward over all of it.
std::vector<double> log_probs(RankModel& model, const std::vector<std::int32_t>& tokens) {
  struct Sink : OutputSink {
    explicit Sink(RankModel& of) : model(of) {}
    void on_outputs(std::int64_t, std::span<const Var> outputs) override {
      Tensor all = stage_logits(model.ctx(), model.head_stage(), outputs[0], outputs[0].shape()[0]);
      logits = model.ctx().download<double>(all);
    }
    RankModel& model;
    std::vector<double> logits;
  } sink(model);
  TokenSample sample = labelled_sample(tokens, tokens);
  std::vector<MicroBatch> batches = rank_micro_batches(model.ctx(), {&sample, 1}, 1);
  model.forward_outputs(batches, sink);
  auto columns = static_cast<std::size_t>(model.options().model.vocab_size);
  std::vector<double> out;
  for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
    const double* row = sink.logits.data() + t * columns;
    double sum = 0;
    for (std::size_t v = 0; v < columns; ++v) sum += std::exp(row[v]);
    out.push_back(row[tokens[t + 1]] - std::log(sum));
  }
  return out;
}

TEST(Slices, RecurrenceDecodesWithAStateOfConstantSize) {
  run_thread_ranks(1, {}, [](World& world) {
    EngineOptions options;
    options.model = hybrid_model();
    options.dtype = Dtype::kF64;
    options.parallel.data_parallel_size = 1;
    options.gradients = false;
    Rank rank(world, cpu_kernels(), options);
    RankModel model(rank, options);
    std::vector<StateSpec> states = model.stage().states(model.ctx());
    for (std::size_t i = 0; i < states.size(); ++i) {
      EXPECT_EQ(states[i].key_columns == 0, i % 2 == 1);
      EXPECT_EQ(states[i].sequence_elements, i % 2 == 1 ? options.model.hidden_size : 0);
    }
    const std::vector<std::vector<std::int32_t>> prompts = {{3, 1, 4, 1, 5}, {9, 2}, {6}};
    std::vector<Request> requests(prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      requests[i].prompt = prompts[i];
      requests[i].max_new_tokens = 7;
    }
    InferenceEngine inference(model, options_for(requests, {.block_tokens = 4}));
    std::vector<SequenceResult> results;
    for (RequestResult& result : generate(inference, requests)) {
      results.push_back(std::move(result.sequences.at(0)));
    }
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      std::vector<std::int32_t> all = prompts[i];
      all.insert(all.end(), results[i].tokens.begin(), results[i].tokens.end());
      std::vector<double> expected = log_probs(model, all);
      ASSERT_EQ(results[i].logprobs.size(), 7u);
      for (std::size_t t = 0; t < 7; ++t) {
        EXPECT_NEAR(results[i].logprobs[t], expected[prompts[i].size() - 1 + t], 1e-11);
      }
    }
  });
}

// Sources have other lengths than their targets.
StepSamples translation_samples(std::uint64_t seed) {
  StepSamples samples;
  for (std::uint64_t i = 0; i < 4; ++i) {
    auto length = static_cast<std::int64_t>(7 + (seed + 5 * i) % 6);
    StepSamples target = random_samples(61, 1, length, seed + 10 * i);
    StepSamples source = random_samples(61, 1, 13 - length / 2, seed + 1000 * i);
    target[0].documents = {static_cast<std::int32_t>(length)};
    target[0].fields = {{kSourceTokens, FieldRows::kOwn, source[0].tokens}};
    samples.push_back(target[0]);
  }
  return samples;
}

TEST(Slices, EncoderAndDecoderExchangeTwoNamedTensors) {
  TinyRun run;
  run.model = tiny_llama();
  run.model.vocab_size = 61;
  run.model.num_layers = 6;
  run.model.architecture = encoder_decoder_architecture();
  run.samples = translation_samples;
  expect_one_ranks_answer(run, concat(kLayouts, " pp3 pp3dp2 tp2sp,pp3"));
}

// Pairs with the log-probabilities of a reference that was trained elsewhere.
StepSamples pairs_with_reference(std::uint64_t seed) {
  StepSamples samples = random_samples(61, 8, 9, seed);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    double reference = -20.0 - static_cast<double>((seed * 7 + i * 13) % 11);
    samples[i].fields = {{kReferenceLogProbs, FieldRows::kSamples, std::vector<double>{reference}}};
  }
  return samples;
}

TinyRun pairwise_run() {
  TinyRun run;
  run.model = tiny_llama();
  run.model.vocab_size = 61;
  run.objective = &pairwise_objective();
  run.micro_batch_size = 2;
  return run;
}

TEST(Slices, PairwiseObjectiveWithReferenceLogProbsAsABatchField) {
  TinyRun run = pairwise_run();
  run.samples = pairs_with_reference;
  expect_one_ranks_answer(run, kLayouts);
}

// A frozen model on the rank and mesh of the trained one; its log-probabilities become a batch
// field where the loss is computed.
class FrozenReference final : public BatchPreparation, public OutputSink {
 public:
  explicit FrozenReference(RankModel& trained) : model_(trained.rank(), frozen(trained.options())) {
    EXPECT_EQ(&model_.mesh(), &trained.mesh());
  }
  static ModelOptions frozen(ModelOptions options) {
    options.gradients = false;
    options.seed += 1;
    return options;
  }
  void prepare(std::span<MicroBatch> batches) override {
    batches_ = batches;
    model_.forward_outputs(batches, *this);
  }
  void on_outputs(std::int64_t micro_batch, std::span<const Var> outputs) override {
    MicroBatch& batch = batches_[static_cast<std::size_t>(micro_batch)];
    Var sums = sample_log_probs(model_.ctx(), model_.head_stage(), batch, outputs[0]);
    batch.fields.push_back({kReferenceLogProbs, FieldRows::kSamples, sums.tensor, {}});
  }

 private:
  RankModel model_;
  std::span<MicroBatch> batches_;
};

TEST(Slices, TwoModelsOnOneMeshOneFrozen) {
  TinyRun run = pairwise_run();
  run.samples = [](std::uint64_t seed) { return random_samples(61, 8, 9, seed); };
  run.preparation = [](RankModel& trained) -> std::unique_ptr<BatchPreparation> {
    return std::make_unique<FrozenReference>(trained);
  };
  expect_one_ranks_answer(run, kLayouts);
}

// Low-rank adapters on every linear layer; the base is frozen and keeps its bits.
void expect_adapters_train_alone(TinyRun run, const std::string& layouts) {
  LoraConfig& lora = run.model.lora;
  if (!lora.used()) lora.rank = 3;
  lora.alpha = 7;
  if (lora.target_modules.empty()) lora.target_modules = {"all-linear"};
  expect_one_ranks_answer(run, layouts);
  LayoutAnswer late = run_tiny(run);
  run.steps = 1;
  LayoutAnswer early = run_tiny(run);
  std::size_t adapters = 0;
  for (const auto& [name, values] : late.weights) {
    // PiSSA's opposite factors are frozen.
    bool adapter = is_adapter_name(name) && name.find(".opposite.") == std::string::npos;
    adapters += adapter;
    EXPECT_EQ(late.gradients.contains(name), adapter) << name;
    EXPECT_EQ(values == early.weights.at(name), !adapter) << name;
  }
  EXPECT_GT(adapters, 0u);
}

TEST(Slices, LowRankAdaptersOnEveryDenseLinear) {
  TinyRun run;
  run.model = tiny_llama();
  expect_adapters_train_alone(run, concat(kLayouts, " pp2vpp2 pp2zbh1 dp2zero1 dp2zero2"));
  // With biases, tied embeddings and dropout.
  run.model = tiny_gpt();
  expect_adapters_train_alone(run, "tp2 tp2sp pp2 cp2 dp2zero3");
  // On the projections to and from latents.
  run.model = tiny_deepseek();
  expect_adapters_train_alone(run, "tp2 tp2sp pp2 cp2 dp2zero3");
}

// Some parts of fused weights, each with a rank of its own; two key-value heads on four ranks.
TEST(Slices, LowRankAdaptersOfSomeModules) {
  TinyRun run;
  run.model = tiny_llama();
  run.model.num_attention_heads = 8;
  run.model.lora.rank = 2;
  run.model.lora.rslora = true;
  run.model.lora.target_modules = {"k_proj", "v_proj", "up_proj", "o_proj"};
  run.model.lora.rank_pattern = {"v_proj=5", "layers\\.1\\.mlp\\.up_proj=1"};
  expect_adapters_train_alone(run, "tp2 tp4 tp2sp,dp2zero3 pp4 pp2vpp2,dp2zero1 cp2");
}

TEST(Slices, DropoutOfAdapters) {
  TinyRun run;
  run.model = tiny_llama();
  run.model.lora.rank = 3;
  run.model.lora.dropout = 0.3;
  expect_adapters_train_alone(run, concat(kLayouts, " pp2vpp2"));
  run.model = tiny_deepseek();
  run.model.lora.rank = 3;
  run.model.lora.dropout = 0.3;
  expect_adapters_train_alone(run, "tp2sp cp2,dp2zero3");
}

TEST(Slices, MagnitudesOfAdapters) {
  TinyRun run;
  run.model = tiny_llama();
  run.model.lora.rank = 3;
  run.model.lora.dora = true;
  expect_adapters_train_alone(run, concat(kLayouts, " pp2vpp2 pp2zbh1 tp2sp,dp2zero1"));
  run.model = tiny_gpt();
  run.model.lora.rank = 3;
  run.model.lora.dora = true;
  run.model.lora.target_modules = {"c_attn", "mlp.c_proj"};
  expect_adapters_train_alone(run, "tp2 tp2sp,pp2 dp2zero3");
}

// With dropout W has the same inputs as A.
TEST(Slices, MagnitudesOfAdaptersWithDropout) {
  TinyRun run;
  run.model = tiny_llama();
  run.model.lora.rank = 3;
  run.model.lora.dora = true;
  run.model.lora.dropout = 0.3;
  expect_adapters_train_alone(run, "tp2 tp2sp pp2 cp2 dp2zero3");
  run.model = tiny_gpt();
  run.model.lora.rank = 2;
  run.model.lora.dora = true;
  run.model.lora.dropout = 0.2;
  expect_adapters_train_alone(run, "tp2sp,pp2");
}

TEST(Slices, AdaptersOfEmbeddings) {
  TinyRun run;
  run.model = tiny_llama();
  run.model.lora.rank = 3;
  run.model.lora.target_modules = {"embed_tokens", "q_proj"};
  expect_adapters_train_alone(run, concat(kLayouts, " pp2vpp2 pp2zbv dp2zero1"));
  // The head of a tied model is not adapted.
  run.model = tiny_gpt();
  run.model.lora.rank = 3;
  run.model.lora.target_modules = {"wte", "c_fc"};
  expect_adapters_train_alone(run, "tp2 tp2sp pp2 pp2vpp2 dp2zero3");
}

// The factors begin as a part of the weights, the same under every layout.
TEST(Slices, AdaptersOfPissa) {
  TinyRun run;
  run.model = tiny_llama();
  run.model.lora.rank = 3;
  run.model.lora.init = LoraInit::kPissa;
  expect_adapters_train_alone(run, concat(kLayouts, " pp2vpp2 dp2zero1"));
  run.model = tiny_deepseek();
  run.model.lora.rank = 2;
  run.model.lora.dropout = 0.2;
  run.model.lora.init = LoraInit::kPissa;
  expect_adapters_train_alone(run, "tp2sp pp2,dp2zero3");
}

// Embedding, head and norms train as copies; what they are copies of keeps its bits.
TEST(Slices, ModulesThatTrainAsAWhole) {
  TinyRun run;
  run.model = tiny_llama();
  run.model.lora.rank = 3;
  run.model.lora.target_modules = {"q_proj", "down_proj"};
  run.model.lora.modules_to_save = {"lm_head", "embed_tokens", "norm"};
  expect_adapters_train_alone(run, concat(kLayouts, " pp2vpp2 pp2zbh1 pp2zbv dp2zero1 dp2zero2"));
  // Tied: one copy for both.
  run.model = tiny_gpt();
  run.model.lora.rank = 3;
  run.model.lora.target_modules = {"c_attn"};
  run.model.lora.modules_to_save = {"wte", "wpe", "ln_1"};
  expect_adapters_train_alone(run, "tp2 tp2sp pp2 pp2vpp2 pp2zbv cp2 dp2zero3");
}

TEST(Slices, LowRankAdaptersOfExperts) {
  TinyRun run;
  run.model = mixtral_like();
  expect_adapters_train_alone(
      run, "tp2 tp2sp pp2 cp2 dp2ep2 tp2ep2etp1 tp2etp1 tp2dp2ep2 dp2zero3 dp2ep2zero3");
}

// QLoRA: the values of NF4 are those of the whole tensors, whatever part of them a rank holds, also
// where its rows begin within a block.
TEST(Slices, LowRankAdaptersOnABaseInNf4) {
  TinyRun run;
  run.base = {.quantize_base = BaseFormat::kNf4, .double_quant = true};
  run.model = tiny_llama();
  expect_adapters_train_alone(run, concat(kLayouts, " pp2vpp2 dp2zero1 dp2zero2 tp2,dp2zero3"));
  run.base.double_quant = false;
  run.base.quantize_block_size = 128;
  run.model = tiny_deepseek();
  expect_adapters_train_alone(run, "tp2 tp2sp pp2 dp2zero3");
}

TEST(Slices, LowRankAdaptersOfExpertsInNf4) {
  TinyRun run;
  run.base = {.quantize_base = BaseFormat::kNf4, .double_quant = true};
  run.model = mixtral_like();
  expect_adapters_train_alone(run, "tp2sp dp2ep2 tp2ep2etp1 tp2dp2ep2 dp2ep2zero3");
}

// Layers 0 and 1 and the embedding are frozen.
bool in_trained_half(const std::string& name) {
  return name.starts_with("decoder.layers.2.") || name.starts_with("decoder.layers.3.") ||
         name.starts_with("decoder.final") || name.starts_with("output_layer");
}

std::unique_ptr<ModelStage> make_frozen_prefix(const ModelConfig& config, const StageRange& range,
                                               const BuildOptions& options, Param* embedding) {
  auto stage = kDecoderArchitecture.make_stage(config, range, options, embedding);
  for (Param* param : stage->params()) param->trains = in_trained_half(param->name);
  return stage;
}

TEST(Slices, FrozenPrefix) {
  Architecture frozen_prefix = kDecoderArchitecture;
  frozen_prefix.make_stage = make_frozen_prefix;
  TinyRun run;
  run.model = tiny_llama();
  run.model.num_layers = 4;
  run.model.untie_embeddings_and_output_weights = true;
  run.model.architecture = &frozen_prefix;
  expect_one_ranks_answer(run, concat(kLayouts, " pp4 pp2vpp2 pp2zbh1 pp2zbv tp2,pp2,dp2zero3"));
  for (const auto& [name, gradient] : run_tiny(run).gradients) {
    EXPECT_TRUE(in_trained_half(name)) << name;
  }
}

}  // namespace
}  // namespace bev::test
