// Every model family against transformers: logits, loss, all gradients, ten AdamW steps, on one
// rank and under layouts, for random tiny models with awkward shapes (tests/golden/README.md).
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "backend/cpu/cpu_kernels.h"
#include "base/file.h"
#include "bridge/adapter_config.h"
#include "bridge/adapter_files.h"
#include "bridge/hf_model.h"
#include "bridge/weight_files.h"
#include "bridge/weight_map.h"
#include "comm/world.h"
#include "data/batch.h"
#include "data/token_file.h"
#include "infer/generate.h"
#include "models/families/proven.h"
#include "parallel/engine.h"
#include "tests/support/devices.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden_encoders.h"
#include "tests/support/logits.h"
#include "tests/support/temp_folder.h"
#include "verify/layouts.h"

namespace bev {
namespace {

using nlohmann::json;

std::string folder_of(const std::string& fixture) {
  return join_path(BEV_SOURCE_DIR "/tests/golden/models", fixture);
}

std::vector<std::string> fixtures() {
  return list_directory(BEV_SOURCE_DIR "/tests/golden/models");
}

std::vector<float> floats(const TensorBytes& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.shape.numel()));
  EXPECT_EQ(tensor.dtype, Dtype::kF32);
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

double largest(const std::vector<float>& values) {
  double most = 0;
  for (float value : values) most = std::max(most, std::abs(static_cast<double>(value)));
  return most;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    most = std::isnan(difference) ? INFINITY : std::max(most, difference);
  }
  return most;
}

EngineOptions engine_options(const std::string& folder, const ParallelConfig& parallel) {
  EngineOptions options;
  options.model = read_hf_config(folder);
  options.model.moe_training.bias_update_rate = 0;  // transformers leaves expert biases alone
  options.parallel = parallel;
  options.parallel.data_parallel_size = std::max<std::int64_t>(parallel.data_parallel_size, 1);
  return options;
}

std::vector<TokenSample> samples_of(const TokenRows& rows) {
  std::vector<TokenSample> samples;
  for (std::size_t i = 0; i < rows.input_ids.size(); ++i) {
    samples.push_back(labelled_sample(rows.input_ids[i], rows.labels[i]));
  }
  return samples;
}

// Logits [T, V] of one row on a single-rank engine.
std::vector<float> logits_of(Engine& engine, std::span<const TokenSample> samples) {
  MicroBatch batch = make_micro_batch(engine.model().ctx(), samples, 0);
  return engine.model().ctx().download<float>(test::whole_logits(engine.model(), batch));
}

// False for what transformers keeps as a buffer or does not differentiate.
bool trains(const std::string& param) {
  for (const char* end : {".expert_bias", ".activation.beta", ".activation.eps"}) {
    if (param.ends_with(end)) return false;
  }
  return param.find(".indexer.") == param.npos;
}

// Gradients under Hugging Face's names, compared on world rank 0.
void expect_gradients(Engine& engine, const SafetensorsFile& expected, double tolerance) {
  WeightMap map(engine.model().options().model);
  ParamGather gather(engine.model(), ParamGather::What::kGradient);
  for (const ParamMapping& mapping : map.params()) {
    if (!trains(mapping.param)) continue;
    Tensor gradient = gather.gather(mapping.param);
    if (gradient.empty()) continue;
    for (std::size_t part = 0; part < mapping.tensors.size(); ++part) {
      const HfTensor& tensor = mapping.tensors[part];
      std::vector<float> ours(static_cast<std::size_t>(tensor.shape.numel()));
      split_param(mapping, part, gradient.view().data, gradient.dtype(), Dtype::kF32, ours.data());
      std::vector<float> theirs = floats(expected.tensor("grad." + tensor.name));
      // A gradient that is zero in exact arithmetic (the bias of k) is only noise.
      double scale = std::max(largest(theirs), 1e-3);
      EXPECT_LT(largest_difference(ours, theirs) / scale, tolerance) << tensor.name;
    }
  }
}

struct GoldenCase {
  std::string fixture;
  test::TestDevice device = test::TestDevice::kCpu;
};

class GoldenModel : public testing::TestWithParam<GoldenCase> {
 protected:
  void SetUp() override {
    if (test::find_device(GetParam().device) == nullptr) GTEST_SKIP() << "no such device";
  }
  const Kernels& kernels() const { return *test::find_device(GetParam().device); }
  std::string folder() const { return folder_of(GetParam().fixture); }
  json expected() const { return json::parse(read_file(join_path(folder(), "expected.json"))); }
};

// The layout of a fixture: as many axes as its sizes allow.
ParallelConfig golden_layout(const ModelConfig& model) {
  ParallelConfig parallel;
  const bool shares = model.kv_heads() % 2 == 0 || model.kv_heads() == 1;
  const bool splits = model.num_attention_heads % 2 == 0 && shares && model.ffn_size() % 2 == 0;
  parallel.tensor_model_parallel_size = splits ? 2 : 1;
  parallel.sequence_parallel = splits;
  parallel.pipeline_model_parallel_size = model.num_layers > 1 ? 2 : 1;
  parallel.data_parallel_size = 2;
  parallel.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
  return parallel;
}
TEST_P(GoldenModel, LogitsLossAndGradientsAreTransformers) {
  json wanted = expected();
  SafetensorsFile tensors(join_path(folder(), "expected.safetensors"));
  run_thread_ranks(1, {}, [&](World& world) {
    Engine engine(world, kernels(), engine_options(folder(), {}));
    load_hf_weights(engine, folder());
    TokenRows rows = read_token_rows(join_path(folder(), "tokens.json"),
                                     engine.model().options().model.vocab_size);
    std::vector<TokenSample> samples = samples_of(rows);
    std::vector<float> logits = floats(tensors.tensor("logits"));
    EXPECT_LT(largest_difference(logits_of(engine, samples), logits), 2e-4);
    std::vector<MicroBatch> batches = rank_micro_batches(engine.model().ctx(), samples, 2);
    StepResult result = engine.gradients(batches, {1});
    EXPECT_NEAR(result.loss, wanted["loss"].get<double>(), 2e-5);
    EXPECT_EQ(result.tokens, wanted["tokens"].get<double>());
    EXPECT_NEAR(result.grad_norm / wanted["grad_norm"].get<double>(), 1, 1e-4);
    expect_gradients(engine, tensors, 1e-4);
  });
}

TEST_P(GoldenModel, LayoutsGiveTransformersGradients) {
  SafetensorsFile tensors(join_path(folder(), "expected.safetensors"));
  json wanted = expected();
  const ParallelConfig parallel = golden_layout(read_hf_config(folder()));
  auto ranks = static_cast<int>(mesh_shape(parallel).size());
  run_thread_ranks(ranks, {60.0}, [&](World& world) {
    Engine engine(world, kernels(), engine_options(folder(), parallel));
    load_hf_weights(engine, folder());
    TokenRows rows = read_token_rows(join_path(folder(), "tokens.json"),
                                     engine.model().options().model.vocab_size);
    std::vector<TokenSample> samples = samples_of(rows);
    std::vector<MicroBatch> batches = rank_micro_batches(engine.model().ctx(), samples, 1);
    StepResult result = engine.gradients(batches, {1});
    EXPECT_NEAR(result.loss, wanted["loss"].get<double>(), 2e-5);
    EXPECT_NEAR(result.grad_norm / wanted["grad_norm"].get<double>(), 1, 1e-4);
    expect_gradients(engine, tensors, 1e-4);
  });
}

TEST_P(GoldenModel, TenAdamWStepsFollowTorch) {
  json wanted = expected()["adamw"];
  run_thread_ranks(1, {}, [&](World& world) {
    EngineOptions options = engine_options(folder(), {});
    options.optim.adam_beta1 = wanted["beta1"];
    options.optim.adam_beta2 = wanted["beta2"];
    options.optim.adam_eps = wanted["eps"];
    Engine engine(world, kernels(), options);
    load_hf_weights(engine, folder());
    std::vector<GlobalBatch> replay =
        read_token_batches(join_path(folder(), "token_batches.json"), options.model.vocab_size);
    ASSERT_EQ(replay.size(), wanted["losses"].size());
    for (std::size_t i = 0; i < replay.size(); ++i) {
      std::vector<MicroBatch> batches =
          rank_micro_batches(engine.model().ctx(), replay[i].samples, 1);
      StepInput input{static_cast<std::int64_t>(i) + 1, wanted["lr"].get<double>(),
                      wanted["weight_decay"], 1.0, wanted["clip_grad"]};
      StepResult result = engine.train_step(batches, input);
      EXPECT_NEAR(result.loss, wanted["losses"][i].get<double>(), 2e-4) << "step " << i;
      EXPECT_NEAR(result.grad_norm / wanted["grad_norms"][i].get<double>(), 1, 5e-4)
          << "step " << i;
    }
  });
}

TEST_P(GoldenModel, GreedyDecodingFollowsTransformers) {
  json wanted = expected()["greedy"];
  run_thread_ranks(1, {}, [&](World& world) {
    EngineOptions options = engine_options(folder(), {});
    options.gradients = false;
    Engine engine(world, kernels(), options);
    load_hf_weights(engine, folder());
    for (std::size_t i = 0; i < wanted["prompts"].size(); ++i) {
      // Dynamic frequencies change with every token; keys kept from before keep theirs, as in
      // transformers.
      bool dynamic = options.model.rope_scaling.kind == RopeScalingKind::kDynamic;
      if (dynamic && !wanted["cache_safe"][i].get<bool>()) continue;
      Request request;
      request.max_new_tokens = wanted["max_new_tokens"];
      request.prompt = wanted["prompts"][i].get<std::vector<std::int32_t>>();
      InferenceEngine inference(engine.model(), options_for({&request, 1}, {.block_tokens = 4}));
      EXPECT_EQ(generate(inference, {&request, 1}).at(0).sequences.at(0).tokens,
                wanted["generated"][i].get<std::vector<std::int32_t>>());
    }
  });
}

TEST_P(GoldenModel, ExportIsTheInputBitForBit) {
  const TempFolder out;
  run_thread_ranks(1, {}, [&](World& world) {
    Engine engine(world, kernels(), engine_options(folder(), {}));
    load_hf_weights(engine, folder());
    export_hf(engine.model(), out.path("model"),
              {{"config.json", to_hf(read_hf_config(folder()), Dtype::kF32).dump()}});
  });
  const SafetensorsFile theirs(join_path(folder(), "model.safetensors"));
  const SafetensorsFile ours(out.path("model/model.safetensors"));
  ASSERT_EQ(ours.tensors().size(), theirs.tensors().size());
  for (const StoredTensor& tensor : theirs.tensors()) {
    const StoredTensor* same = ours.find(tensor.name);
    ASSERT_NE(same, nullptr) << tensor.name;
    EXPECT_EQ(same->shape, tensor.shape) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(same->bytes, tensor.bytes)) << tensor.name;
  }
  EXPECT_TRUE(
      differing_fields(read_hf_config(out.path("model")), read_hf_config(folder())).empty());
}

// Fixtures that hold a file of this name; there must be some.
std::vector<std::string> fixtures_with(const std::string& file) {
  std::vector<std::string> names;
  for (const std::string& name : fixtures()) {
    if (path_exists(join_path(folder_of(name), file))) names.push_back(folder_of(name));
  }
  EXPECT_GE(names.size(), 3u) << file;
  return names;
}

TEST(GoldenRows, OfUnequalLengthAreScoredTogether) {
  for (const std::string& folder : fixtures_with("tokens_ragged.json")) {
    SCOPED_TRACE(folder);
    json wanted = json::parse(read_file(join_path(folder, "expected_ragged.json")));
    SafetensorsFile tensors(join_path(folder, "expected_ragged.safetensors"));
    run_thread_ranks(1, {}, [&](World& world) {
      Engine engine(world, cpu_kernels(), engine_options(folder, {}));
      load_hf_weights(engine, folder);
      std::vector<TokenSample> samples = samples_of(read_token_rows(
          join_path(folder, "tokens_ragged.json"), engine.model().options().model.vocab_size));
      std::vector<float> logits = logits_of(engine, samples);
      auto at = logits.begin();
      for (std::size_t row = 0; row < samples.size(); ++row) {
        std::vector<float> theirs = floats(tensors.tensor("logits." + std::to_string(row)));
        auto end = at + static_cast<std::ptrdiff_t>(theirs.size());
        EXPECT_LT(largest_difference(std::vector<float>(at, end), theirs), 2e-4) << "row " << row;
        at = end;
      }
      std::vector<MicroBatch> batches = rank_micro_batches(engine.model().ctx(), samples, 2);
      EXPECT_NEAR(engine.gradients(batches, {1}).loss, wanted["loss"].get<double>(), 2e-5);
    });
  }
}

// A row's results do not depend on the other rows of its batch, even if frequencies depend on the
// length.
TEST(GoldenRows, AreTheSameAloneAndTogether) {
  for (const char* name : {"llama_rope_dynamic", "phi3_longrope_long", "gemma3"}) {
    SCOPED_TRACE(name);
    run_thread_ranks(1, {}, [&](World& world) {
      Engine engine(world, cpu_kernels(), engine_options(folder_of(name), {}));
      load_hf_weights(engine, folder_of(name));
      std::vector<TokenSample> rows;
      for (std::int32_t length : {4, 19, 7}) {
        std::vector<std::int32_t> tokens;
        for (std::int32_t t = 0; t < length; ++t) tokens.push_back((7 * t + length) % 50);
        rows.push_back(labelled_sample(tokens, tokens));
      }
      std::vector<float> together = logits_of(engine, rows), alone;
      for (const TokenSample& row : rows) {
        std::vector<float> one = logits_of(engine, std::span(&row, 1));
        alone.insert(alone.end(), one.begin(), one.end());
      }
      EXPECT_LT(largest_difference(together, alone), 2e-5);
    });
  }
}

// Beyond the keys that an indexer chooses attention would be sparse, and is refused.
TEST(GoldenSparse, SequencesBeyondTheIndexersChoiceAreRefused) {
  for (const char* name : {"deepseek_v32", "glm_moe_dsa"}) {
    const std::string folder = folder_of(name);
    expect_error(ErrorKind::kInput, {"longer than the 8", "index_topk"}, [&] {
      run_thread_ranks(1, {}, [&](World& world) {
        EngineOptions options = engine_options(folder, {});
        options.model.indexer.topk = 8;
        Engine engine(world, cpu_kernels(), options);
        load_hf_weights(engine, folder);
        const std::vector<TokenSample> samples =
            samples_of(read_token_rows(join_path(folder, "tokens.json"), options.model.vocab_size));
        logits_of(engine, samples);
      });
    });
  }
}

// Depths of multi-token prediction, on one rank and with the table on another stage.
TEST(GoldenMtp, GradientsAreThoseOfTransformersLayers) {
  const std::string folder = BEV_SOURCE_DIR "/tests/golden/mtp";
  json wanted = json::parse(read_file(join_path(folder, "expected.json")));
  SafetensorsFile tensors(join_path(folder, "expected.safetensors"));
  for (std::int64_t stages : {1, 2}) {
    ParallelConfig parallel;
    parallel.pipeline_model_parallel_size = stages;
    run_thread_ranks(static_cast<int>(stages), {60.0}, [&](World& world) {
      EngineOptions options = engine_options(folder, parallel);
      EXPECT_EQ(options.model.mtp_num_layers, 0);  // they are an option
      options.model.mtp_num_layers = wanted["depths"];
      options.model.mtp_loss_scaling_factor = wanted["factor"];
      Engine engine(world, cpu_kernels(), options);
      load_hf_weights(engine, folder);
      std::vector<TokenSample> samples =
          samples_of(read_token_rows(join_path(folder, "tokens.json"), options.model.vocab_size));
      std::vector<MicroBatch> batches =
          rank_micro_batches(engine.model().ctx(), samples, 1, mtp_spec(options.model));
      StepResult result = engine.gradients(batches, {1});
      EXPECT_NEAR(result.loss, wanted["loss"].get<double>(), 2e-5);
      auto depths = wanted["depth_losses"].get<std::vector<double>>();
      for (std::size_t i = 0; i < depths.size(); ++i) {
        const Metric* term = result.metric(concat("mtp_", i + 1, " loss"));
        ASSERT_NE(term, nullptr);
        EXPECT_NEAR(term->value, depths[i], 2e-5);
      }
      EXPECT_EQ(result.metric(concat("mtp_", depths.size() + 1, " loss")), nullptr);
      expect_gradients(engine, tensors, 1e-4);
    });
  }
}

// A plain model may be read from files that hold such depths.
TEST(GoldenMtp, DepthsMayBeLeftAway) {
  const std::string folder = BEV_SOURCE_DIR "/tests/golden/mtp";
  run_thread_ranks(1, {}, [&](World& world) {
    Engine engine(world, cpu_kernels(), engine_options(folder, {}));
    load_hf_weights(engine, folder);
  });
}

TEST(GoldenConfig, OfTransformers4IsTheSameModel) {
  for (const std::string& folder : fixtures_with("config_v4.json")) {
    std::string path = join_path(folder, "config_v4.json");
    ModelConfig old = from_hf(HfConfig::parse(read_file(path), path));
    EXPECT_TRUE(differing_fields(old, read_hf_config(folder)).empty()) << path;
  }
}

// `help models` says what these tests ran, no more and no less.
TEST(ProvenModels, AreThoseOfTheFixtures) {
  std::map<std::string, std::pair<std::set<std::string>, std::set<std::string>>> ran;
  for (const std::string& name : fixtures()) {
    const ModelConfig model = read_hf_config(folder_of(name));
    auto& [folders, layouts] = ran[model.family];
    folders.insert(name);
    layouts.insert(layout_text(golden_layout(model)));
  }
  for (const std::string& name : test::encoder_fixtures()) {
    const ModelConfig model = read_hf_config(test::encoder_folder(name));
    auto& [folders, layouts] = ran[model.family];
    folders.insert(name);
    layouts.insert(test::encoder_layout(model));
  }
  std::string right;
  for (const auto& [family, lists] : ran) {
    auto line = [](const std::set<std::string>& words) {
      return join(std::vector<std::string>(words.begin(), words.end()), " ");
    };
    right += concat("BEV_PROVEN(\"", family, "\", \"", line(lists.first), "\", \"",
                    line(lists.second), "\")\n");
  }
  const std::string file = read_file(BEV_SOURCE_DIR "/src/models/families/proven.def");
  const std::size_t begin = file.find("BEV_PROVEN"), end = file.find("\n#undef");
  EXPECT_EQ(file.substr(begin, end - begin), right) << "src/models/families/proven.def is not what "
                                                       "the tests ran; these lines are";
  for (const ModelFamily& family : families()) {
    EXPECT_TRUE(ran.contains(family.name)) << family.name << " has no fixture";
  }
}

// A config.json of the family with each refused setting, by the name of its key.
TEST(ProvenModels, RefuseSettingsByName) {
  std::set<std::string> known;
  for (const ProvenFamily& family : proven_families()) {
    known.emplace(family.name);
    const std::string fixture(family.fixtures.at(0));
    const bool encoder = path_exists(test::encoder_folder(fixture));
    const std::string path =
        join_path(encoder ? test::encoder_folder(fixture) : folder_of(fixture), "config.json");
    for (const RefusedSetting& setting : refused_settings()) {
      if (setting.family != family.name) continue;
      json config = json::parse(read_file(path));
      config[std::string(setting.key)] = json::parse(setting.value);
      expect_error(ErrorKind::kInput, {std::string(setting.key)},
                   [&] { from_hf(HfConfig::parse(config.dump())); });
    }
  }
  for (const RefusedSetting& setting : refused_settings()) {
    EXPECT_TRUE(known.contains(std::string(setting.family))) << setting.family;
  }
}

std::vector<GoldenCase> cases(test::TestDevice device) {
  std::vector<GoldenCase> all;
  for (const std::string& fixture : fixtures()) all.push_back({fixture, device});
  return all;
}
std::string case_name(const testing::TestParamInfo<GoldenCase>& info) { return info.param.fixture; }

INSTANTIATE_TEST_SUITE_P(Transformers, GoldenModel,
                         testing::ValuesIn(cases(test::TestDevice::kCpu)), case_name);
INSTANTIATE_TEST_SUITE_P(Cuda, GoldenModel, testing::ValuesIn(cases(test::TestDevice::kCuda)),
                         case_name);

// Tokens and log-probabilities of three prompts.
std::vector<SequenceResult> generated(World& world, const ModelConfig& config,
                                      const std::string& base,
                                      const std::vector<std::string>& folders,
                                      const std::vector<std::int64_t>& adapters) {
  EngineOptions options;
  options.model = config;
  options.parallel.data_parallel_size = 1;
  options.gradients = false;
  Rank rank(world, cpu_kernels(), options);
  RankModel model(rank, options);
  load_hf_weights(model, base);
  for (std::size_t i = 0; i < folders.size(); ++i) load_adapter(model, folders[i], i);
  std::vector<Request> requests;
  const std::vector<std::vector<std::int32_t>> prompts = {{3, 1, 4, 1, 5}, {9, 2}, {6, 5, 3}};
  for (const std::vector<std::int32_t>& prompt : prompts) {
    for (std::int64_t adapter : adapters) {
      requests.emplace_back().prompt = prompt;
      requests.back().max_new_tokens = 6;
      requests.back().cache_key.adapter = adapter;
    }
  }
  InferenceOptions limits = options_for(requests, {.block_tokens = 4});
  limits.chosen_adapters = folders.size() > 1;
  InferenceEngine engine(model, limits);
  std::vector<SequenceResult> results;
  for (RequestResult& result : generate(engine, requests)) {
    results.push_back(std::move(result.sequences.at(0)));
  }
  return results;
}

// Requests of one batch with two adapters and with none give what each gives alone.
TEST(ChosenAdapters, ShareABatch) {
  const std::string base = folder_of("llama_gqa");
  const std::string folder = BEV_SOURCE_DIR "/tests/golden/adapters/llama";
  const ModelConfig none = read_hf_config(base);
  ModelConfig first = none;
  first.lora = read_adapter_config(folder);
  ModelConfig second = first, both = first;
  second.lora.alpha = 40;  // the same factors, another scale
  both.more_loras = {second.lora};
  run_thread_ranks(1, {}, [&](World& world) {
    std::vector<std::vector<SequenceResult>> alone = {
        generated(world, none, base, {}, {-1}), generated(world, first, base, {folder}, {-1}),
        generated(world, second, base, {folder}, {-1})};
    auto mixed = generated(world, both, base, {folder, folder}, {-1, 0, 1});
    EXPECT_NE(alone[0][0].tokens, alone[1][0].tokens);
    EXPECT_NE(alone[1][0].tokens, alone[2][0].tokens);
    for (std::size_t i = 0; i < mixed.size(); ++i) {
      const SequenceResult& expected = alone[i % 3][i / 3];
      EXPECT_EQ(mixed[i].tokens, expected.tokens) << i;
      for (std::size_t t = 0; t < expected.logprobs.size(); ++t) {
        EXPECT_NEAR(mixed[i].logprobs[t], expected.logprobs[t], 1e-5) << i;
      }
    }
  });
}

}  // namespace
}  // namespace bev
