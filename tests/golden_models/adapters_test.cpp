// LoRA adapters against peft: logits and gradients of folders that peft wrote, on one rank and
// under layouts, and folders that come back bit for bit (tests/golden/make_adapters.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "backend/cpu/cpu_kernels.h"
#include "base/file.h"
#include "bridge/adapter_config.h"
#include "bridge/adapter_files.h"
#include "bridge/adapter_start.h"
#include "bridge/hf_model.h"
#include "comm/world.h"
#include "data/batch.h"
#include "data/token_file.h"
#include "parallel/engine.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/logits.h"
#include "tests/support/temp_folder.h"
#include "verify/layouts.h"

namespace bev {
namespace {

const std::string kAdapters = BEV_SOURCE_DIR "/tests/golden/adapters";

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

struct AdapterCase {
  explicit AdapterCase(const std::string& name) : folder(join_path(kAdapters, name)) {
    auto json = nlohmann::json::parse(read_file(join_path(folder, "expected.json")));
    base = join_path(test::golden_folder(), json["base"].get<std::string>());
    loss = json["loss"].get<double>();
    options.model = read_hf_config(base);
    options.model.moe_training.bias_update_rate = 0;
    options.model.lora = read_adapter_config(folder);
    options.parallel.data_parallel_size = 1;
    options.optimizer = false;
  }
  void load(Engine& engine) const {
    load_hf_weights(engine, base);
    load_adapter(engine, folder);
  }
  std::vector<TokenSample> samples() const {
    TokenRows rows = read_token_rows(join_path(base, "tokens.json"), options.model.vocab_size);
    std::vector<TokenSample> out;
    for (std::size_t i = 0; i < rows.input_ids.size(); ++i) {
      out.push_back(labelled_sample(rows.input_ids[i], rows.labels[i]));
    }
    return out;
  }

  std::string folder, base;
  double loss = 0;
  EngineOptions options;
};

class PeftAdapter : public testing::TestWithParam<std::string> {};

void expect_gradients(Engine& engine, const SafetensorsFile& expected) {
  WeightMap map = adapter_map(engine.model().options().model);
  std::vector<ExportTensor> tensors = export_tensors(map, Dtype::kF32);
  EXPECT_EQ(tensors.size() + 1, expected.tensors().size());
  gather_tensors(engine.model(), ParamGather::What::kGradient, map, tensors,
                 [&](const ExportTensor& tensor, std::span<const std::byte> bytes) {
                   std::vector<float> ours(bytes.size() / sizeof(float));
                   std::memcpy(ours.data(), bytes.data(), bytes.size());
                   auto theirs = floats(expected.tensor("grad." + tensor.spec.name));
                   double scale = std::max(largest(theirs), 1e-3);
                   EXPECT_LT(largest_difference(ours, theirs) / scale, 1e-4) << tensor.spec.name;
                 });
}

TEST_P(PeftAdapter, LogitsAndGradientsArePefts) {
  AdapterCase wanted(GetParam());
  SafetensorsFile expected(join_path(wanted.folder, "expected.safetensors"));
  run_thread_ranks(1, {}, [&](World& world) {
    Engine engine(world, cpu_kernels(), wanted.options);
    wanted.load(engine);
    std::vector<TokenSample> samples = wanted.samples();
    RankModel& model = engine.model();
    MicroBatch batch = make_micro_batch(model.ctx(), samples, 0);
    auto logits = model.ctx().download<float>(test::whole_logits(model, batch));
    std::vector<float> theirs = floats(expected.tensor("logits"));
    EXPECT_LT(largest_difference(logits, theirs), 1e-4);
    // Switched off, the base gives its own bits.
    model.ctx().adapters = false;
    auto off = model.ctx().download<float>(test::whole_logits(model, batch));
    EngineOptions plain = wanted.options;
    plain.model.lora = {};
    Engine base(world, cpu_kernels(), plain);
    load_hf_weights(base, wanted.base);
    MicroBatch same = make_micro_batch(base.model().ctx(), samples, 0);
    EXPECT_EQ(off, base.model().ctx().download<float>(test::whole_logits(base.model(), same)));
    EXPECT_GT(largest_difference(off, logits), 1e-2);
    model.ctx().adapters = true;
    StepResult result = engine.gradients(rank_micro_batches(model.ctx(), samples, 2), {1});
    EXPECT_NEAR(result.loss, wanted.loss, 2e-5);
    expect_gradients(engine, expected);
  });
}

TEST_P(PeftAdapter, LayoutsGivePeftsGradients) {
  AdapterCase wanted(GetParam());
  SafetensorsFile expected(join_path(wanted.folder, "expected.safetensors"));
  const bool experts = wanted.options.model.moe.any();
  std::string layouts = experts ? "tp2sp dp2ep2 dp2zero3" : "tp2 dp2zero3";
  if (wanted.options.model.num_attention_heads % 2 != 0) layouts = "dp2zero3";
  for (const ParallelConfig& layout : parse_layouts(layouts, {})) {
    EngineOptions options = wanted.options;
    options.parallel = layout;
    std::int64_t heads = options.model.num_attention_heads, groups = options.model.kv_heads();
    std::int64_t tp = layout.tensor_model_parallel_size;
    if (heads % tp != 0 || groups % tp != 0 || options.model.ffn_size() % tp != 0) continue;
    run_thread_ranks(static_cast<int>(mesh_shape(layout).size()), {}, [&](World& world) {
      Engine engine(world, cpu_kernels(), options);
      wanted.load(engine);
      std::vector<TokenSample> samples = wanted.samples();
      auto batches = rank_micro_batches(engine.model().ctx(), samples, 1);
      EXPECT_NEAR(engine.gradients(batches, {1}).loss, wanted.loss, 2e-5) << layout_text(layout);
      expect_gradients(engine, expected);
    });
  }
}

TEST_P(PeftAdapter, FoldersComeBackBitForBit) {
  AdapterCase wanted(GetParam());
  if (wanted.options.model.lora.init == LoraInit::kPissa) GTEST_SKIP() << "they are converted";
  TempFolder out;
  run_thread_ranks(1, {}, [&](World& world) {
    Engine engine(world, cpu_kernels(), wanted.options);
    wanted.load(engine);
    export_adapter(engine.model(), out.path(), "base");
  });
  SafetensorsFile ours(join_path(out.path(), kAdapterWeightsName));
  SafetensorsFile theirs(join_path(wanted.folder, kAdapterWeightsName));
  std::size_t repeated = 0;
  for (const StoredTensor& tensor : theirs.tensors()) {
    const StoredTensor* mine = ours.find(tensor.name);
    // peft writes the embedding that the model has besides.
    bool of_base = tensor.name.ends_with(".base_layer.weight") && mine == nullptr;
    repeated += of_base;
    if (of_base) continue;
    ASSERT_NE(mine, nullptr) << tensor.name;
    EXPECT_EQ(mine->shape, tensor.shape) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(mine->bytes, tensor.bytes)) << tensor.name;
  }
  EXPECT_EQ(ours.tensors().size() + repeated, theirs.tensors().size());
  LoraConfig again = read_adapter_config(out.path()), lora = wanted.options.model.lora;
  EXPECT_EQ(again.rank, lora.rank);
  EXPECT_EQ(again.alpha, lora.alpha);
  EXPECT_EQ(again.rank_pattern, lora.rank_pattern);
  EXPECT_EQ(again.target_modules, lora.target_modules);
  EXPECT_EQ(again.target_regex, lora.target_regex);
  EXPECT_EQ(again.layers, lora.layers);
  EXPECT_EQ(again.dora, lora.dora);
  EXPECT_EQ(again.modules_to_save, lora.modules_to_save);
  EXPECT_EQ(again.weight_tying, lora.weight_tying);
}

// An adapter of PiSSA comes out as an ordinary one of twice the rank, as peft converts it.
TEST(PissaAdapter, ComesOutForTheModelAsItWas) {
  for (const char* name : {"llama_pissa", "gpt_neox_pissa"}) {
    AdapterCase wanted(name);
    auto theirs =
        floats(SafetensorsFile(join_path(wanted.folder, "expected.safetensors")).tensor("logits"));
    for (const char* layout : {"tp1", "tp2", "dp2zero3"}) {
      TempFolder out;
      EngineOptions options = wanted.options;
      options.parallel = parse_layouts(layout, {}).front();
      run_thread_ranks(static_cast<int>(mesh_shape(options.parallel).size()), {},
                       [&](World& world) {
                         Engine engine(world, cpu_kernels(), options);
                         wanted.load(engine);
                         export_adapter(engine.model(), out.path(), "base");
                       });
      EngineOptions again = wanted.options;
      again.model.lora = read_adapter_config(out.path());
      EXPECT_EQ(again.model.lora.init, LoraInit::kDefault);
      EXPECT_EQ(again.model.lora.rank, 2 * wanted.options.model.lora.rank);
      run_thread_ranks(1, {}, [&](World& world) {
        Engine engine(world, cpu_kernels(), again);
        load_hf_weights(engine, wanted.base);
        load_adapter(engine, out.path());
        RankModel& model = engine.model();
        MicroBatch batch = make_micro_batch(model.ctx(), wanted.samples(), 0);
        auto logits = model.ctx().download<float>(test::whole_logits(model, batch));
        EXPECT_LT(largest_difference(logits, theirs), 1e-4) << name << " " << layout;
      });
    }
  }
}

// At the start the model's own numbers come out, and the factors are the largest part of a weight.
TEST(PissaAdapter, BeginsAsTheLargestPartOfTheWeights) {
  AdapterCase wanted("llama_pissa");
  wanted.options.dtype = Dtype::kF64;
  EngineOptions plain = wanted.options;
  plain.model.lora = {};
  std::vector<double> expected;
  run_thread_ranks(1, {}, [&](World& world) {
    Engine base(world, cpu_kernels(), plain);
    load_hf_weights(base, wanted.base);
    MicroBatch batch = make_micro_batch(base.model().ctx(), wanted.samples(), 0);
    expected = base.model().ctx().download<double>(test::whole_logits(base.model(), batch));
  });
  run_thread_ranks(1, {}, [&](World& world) {
    Engine engine(world, cpu_kernels(), wanted.options);
    load_hf_weights(engine, wanted.base);
    start_adapter(engine.model());
    RankModel& model = engine.model();
    MicroBatch batch = make_micro_batch(model.ctx(), wanted.samples(), 0);
    auto logits = model.ctx().download<double>(test::whole_logits(model, batch));
    for (std::size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], expected[i], 1e-12);
    for (const Param* param : model.store().params()) {
      if (!param->name.ends_with("q_proj.lora_a.weight")) continue;
      auto a = model.ctx().download<double>(model.store().local_value(*param).view);
      double squares = 0;
      for (double value : a) squares += value * value;
      EXPECT_GT(squares, 0.1) << param->name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(, PeftAdapter, testing::ValuesIn(list_directory(kAdapters)),
                         [](const auto& row) { return row.param; });

// A folder with other fields in its adapter_config.json.
std::string folder_with(const TempFolder& to, const char* key, const nlohmann::json& value) {
  std::string from = join_path(kAdapters, "llama");
  auto config = nlohmann::json::parse(read_file(join_path(from, kAdapterConfigName)));
  config[key] = value;
  to.write(kAdapterConfigName, config.dump());
  return to.path();
}

TEST(AdapterConfig, UnknownFieldsAreIgnoredAndOtherMathematicsRefusedByName) {
  using nlohmann::json;
  const std::pair<const char*, json> kIgnored[] = {{"a_field_of_next_year", {{"on", true}}},
                                                   {"peft_version", "9.9"},
                                                   {"eva_config", nullptr},
                                                   {"use_dora", nullptr},
                                                   {"bias", "none"},
                                                   {"layer_replication", json::array()}};
  for (const auto& [key, value] : kIgnored) {
    TempFolder folder;
    EXPECT_EQ(read_adapter_config(folder_with(folder, key, value)).rank, 3) << key;
  }
  const std::pair<const char*, json> kRefused[] = {{"peft_type", "IA3"},
                                                   {"lora_bias", true},
                                                   {"bias", "lora_only"},
                                                   {"use_qalora", true},
                                                   {"alora_invocation_tokens", {1, 2}},
                                                   {"r", 0},
                                                   {"lora_alpha", "8"},
                                                   {"lora_dropout", 1},
                                                   {"init_lora_weights", "olora"},
                                                   {"init_lora_weights", "pissa_niter_4"},
                                                   {"target_modules", {1}},
                                                   {"rank_pattern", {{"q_proj", "two"}}},
                                                   {"layers_to_transform", -1}};
  for (const auto& [key, value] : kRefused) {
    TempFolder folder;
    std::string path = folder_with(folder, key, value);
    expect_error(ErrorKind::kInput, {key}, [&] { read_adapter_config(path); });
  }
}

}  // namespace
}  // namespace bev
