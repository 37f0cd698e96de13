// Folders that transformers and bitsandbytes quantised to NF4, and those that we write.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_kernels.h"
#include "base/file.h"
#include "bridge/hf_model.h"
#include "bridge/nf4_load.h"
#include "bridge/nf4_tensor.h"
#include "bridge/weight_files.h"
#include "bridge/weight_map.h"
#include "comm/world.h"
#include "data/batch.h"
#include "data/token_file.h"
#include "parallel/engine.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/logits.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

std::string nf4_folder(const std::string& model) {
  return BEV_SOURCE_DIR "/tests/golden/nf4/" + model;
}

std::vector<float> floats(const TensorBytes& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.shape.numel()));
  EXPECT_EQ(tensor.dtype, Dtype::kF32);
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

// A copy of the llama with a text replaced wherever it is, by one of the same length.
void copy_with(const TempFolder& to, const std::string& old, const std::string& text) {
  for (const std::string& name : list_directory(nf4_folder("llama"))) {
    std::string content = read_file(join_path(nf4_folder("llama"), name));
    for (std::size_t at = 0; (at = content.find(old, at)) != content.npos; at += text.size()) {
      content.replace(at, old.size(), text);
    }
    to.write(name, content);
  }
}

void check_folder(const std::string& folder) {
  WeightFiles files(folder);
  WeightMap(read_hf_config(folder)).check(files);
}

TEST(Nf4Folders, WeightsOfBitsandbytesAreReadToTheBit) {
  for (const char* model : {"llama", "gpt2"}) {
    WeightFiles files(nf4_folder(model));
    WeightMap map(read_hf_config(nf4_folder(model)));
    map.check(files);
    SafetensorsFile expected(join_path(nf4_folder(model), "expected.safetensors"));
    int compared = 0;
    for (const ParamMapping& mapping : map.params()) {
      std::vector<float> whole(static_cast<std::size_t>(mapping.shape.numel()));
      read_param(mapping, files, Dtype::kF32, whole.data());
      for (std::size_t part = 0; part < mapping.tensors.size(); ++part) {
        const HfTensor& tensor = mapping.tensors[part];
        if (expected.find("weight." + tensor.name) == nullptr) continue;
        std::vector<float> ours(static_cast<std::size_t>(tensor.shape.numel()));
        split_param(mapping, part, whole.data(), Dtype::kF32, Dtype::kF32, ours.data());
        EXPECT_EQ(ours, floats(expected.tensor("weight." + tensor.name))) << tensor.name;
        ++compared;
      }
      std::vector<float> some(whole.size() / 2);
      auto begin = static_cast<std::int64_t>(whole.size() / 3);
      Range range{begin, begin + static_cast<std::int64_t>(some.size())};
      StoredParam(mapping, files).read(range, Dtype::kF32, some.data());
      EXPECT_TRUE(std::equal(some.begin(), some.end(), whole.begin() + begin)) << mapping.param;
    }
    EXPECT_EQ(compared, model == std::string("llama") ? 7 : 4);
  }
}

std::vector<float> logits_of(const std::string& folder, const std::string& tokens) {
  std::vector<float> logits;
  run_thread_ranks(1, {60}, [&](World& world) {
    EngineOptions options;
    options.model = read_hf_config(folder);
    Engine engine(world, cpu_kernels(), options);
    load_hf_weights(engine, folder);
    TokenRows rows = read_token_rows(tokens, options.model.vocab_size);
    std::vector<TokenSample> samples;
    for (std::size_t i = 0; i < rows.input_ids.size(); ++i) {
      samples.push_back(labelled_sample(rows.input_ids[i], rows.labels[i]));
    }
    MicroBatch batch = make_micro_batch(engine.model().ctx(), samples, 0);
    logits = engine.model().ctx().download<float>(test::whole_logits(engine.model(), batch));
  });
  return logits;
}

TEST(Nf4Folders, ModelsComputeTheLogitsOfTheirDequantisedWeights) {
  for (const char* model : {"llama", "gpt2"}) {
    std::string folder = nf4_folder(model);
    SafetensorsFile expected(join_path(folder, "expected.safetensors"));
    std::vector<float> wanted = floats(expected.tensor("logits"));
    std::vector<float> logits = logits_of(folder, join_path(folder, "tokens.json"));
    ASSERT_EQ(logits.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(logits[i], wanted[i], 2e-5) << i;
  }
}

TEST(Nf4Folders, AConvertedFolderIsPlainInTheDtypeThatWasQuantised) {
  TempFolder folder;
  convert_hf(nf4_folder("llama"), {folder.path("plain")});
  WeightFiles plain(folder.path("plain")), packed(nf4_folder("llama"));
  WeightMap map(read_hf_config(folder.path("plain")));
  map.check(plain);
  for (const ParamMapping& mapping : map.params()) {
    std::vector<float> one(static_cast<std::size_t>(mapping.shape.numel())), other(one.size());
    read_param(mapping, plain, Dtype::kF32, one.data());
    read_param(mapping, packed, Dtype::kF32, other.data());
    EXPECT_EQ(one, other) << mapping.param;
    EXPECT_EQ(dtype_of_part(mapping, 0, plain), Dtype::kBf16) << mapping.param;
  }
  EXPECT_FALSE(read_config_json(folder.path("plain")).truthy("quantization_config"));
}

// What we write of a model has the bytes of quantising each of its tensors as bitsandbytes does,
// which the tests of tensor/nf4_quantize.h compare.
TEST(Nf4Folders, EveryFamilyIsWrittenAndReadBack) {
  TempFolder folder;
  for (const std::string& model : test::golden_models()) {
    SCOPED_TRACE(model);
    std::string from = join_path(test::golden_folder(), model), to = folder.path(model);
    for (Nf4Format format : {Nf4Format{64, true}, Nf4Format{32, false}}) {
      ExportTarget target{to};
      target.nf4 = format;
      target.threads = 3;
      convert_hf(from, target);
      WeightFiles written(to), source(from);
      WeightMap map(read_hf_config(to));
      map.check(written);
      for (const ParamMapping& mapping : map.params()) {
        auto count = static_cast<std::size_t>(mapping.shape.numel());
        std::vector<float> was(count), is(count);
        read_param(mapping, source, Dtype::kF32, was.data());
        read_param(mapping, written, Dtype::kF32, is.data());
        double error = 0, size = 0;
        for (std::size_t i = 0; i < count; ++i) {
          error += std::pow(static_cast<double>(is[i]) - was[i], 2);
          size += std::pow(static_cast<double>(was[i]), 2);
        }
        bool quantized = mapping.linear && mapping.shape.ndim() == 2;
        EXPECT_EQ(quantized, was != is) << mapping.param;
        EXPECT_LT(std::sqrt(error / size), 0.13) << mapping.param;
      }
      HfConfig config = *read_config_json(to).object("quantization_config");
      EXPECT_EQ(config.boolean("bnb_4bit_use_double_quant", false), format.double_quant);
      EXPECT_EQ(config.texts("llm_int8_skip_modules").front(), "lm_head");
    }
  }
}

// Weights of a model whose frozen linear layers are kept in NF4, as each tensor-parallel rank has
// them, against what the folder holds.
void expect_base_values(const std::string& folder, const BaseQuantization& base,
                        const std::string& wanted_folder, std::int64_t tp) {
  ModelConfig config = read_hf_config(folder);
  WeightFiles files(wanted_folder);
  WeightMap map(config);
  run_thread_ranks(static_cast<int>(tp), {60}, [&](World& world) {
    EngineOptions options;
    options.model = config;
    options.parallel.tensor_model_parallel_size = tp;
    options.base = base;
    options.gradients = false;
    Engine engine(world, cpu_kernels(), options);
    load_hf_weights(engine, folder);
    ParamGather gather(engine.model(), ParamGather::What::kValue);
    int quantized = 0;
    for (const Param* param : engine.model().store().params()) {
      quantized += param->format == ParamFormat::kNf4;
      EXPECT_EQ(param->format == ParamFormat::kNf4, param->linear) << param->name;
    }
    EXPECT_GT(quantized, 0);
    for (const ParamMapping& mapping : map.params()) {
      Tensor value = gather.gather(mapping.param);
      if (world.rank() != 0) continue;
      std::vector<float> wanted(static_cast<std::size_t>(mapping.shape.numel()));
      read_param(mapping, files, Dtype::kF32, wanted.data());
      const auto* ours = value.view().as<float>();
      EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), ours)) << mapping.param;
    }
  });
}

TEST(Nf4Folders, ABaseThatStaysInNf4HasTheFoldersValues) {
  for (const char* model : {"llama", "gpt2"}) {
    std::string folder = nf4_folder(model);
    Nf4Format format = *folder_nf4_format(read_hf_config(folder), folder);
    BaseQuantization base{BaseFormat::kNf4, format.double_quant, format.block, format.dtype};
    for (std::int64_t tp : {1, 2}) expect_base_values(folder, base, folder, tp);
  }
}

// Quantising while loading gives what a converted folder has.
TEST(Nf4Folders, ABaseThatIsQuantisedHasTheValuesOfAConvertedFolder) {
  TempFolder folder;
  for (const char* model : {"llama_gqa", "gpt_neox", "phi3"}) {
    std::string from = join_path(test::golden_folder(), model), to = folder.path(model);
    ExportTarget target{to};
    target.nf4 = {64, true};
    convert_hf(from, target);
    Dtype dtype = folder_linear_dtype(read_hf_config(from), from);
    BaseQuantization base{BaseFormat::kNf4, true, 64, dtype};
    expect_base_values(from, base, to, 2);
  }
}

TEST(Nf4Folders, WhatDoesNotFitIsNamed) {
  const std::vector<std::array<std::string, 3>> cases = {
      {R"("blocksize": 64)", R"("blocksize": 63)", "a block is a power of two from 32 to 4096"},
      {R"("quant_type": "nf4")", R"("quant_type": "nf5")", "only nf4 is read"},
      {R"("shape": [76, 40])", R"("shape": [40, 76])", "config.json asks for [76, 40]"},
      {"q_proj.weight.absmax", "q_proj.weight.absmix", "without its tensor"},
      {"q_proj.weight.nested_quant_map", "q_proj.weight.nested_quant_mop", "without its tensor"},
      {R"("nested_blocksize": 256)", R"("nested_blocksize": 128)", "only 256 is read"},
      {"bitsandbytes__nf4", "bitsandbytes__fp4", "is stored in FP4"},
      {R"("dtype": "bfloat16")", R"("dtype": "uint1234")", "only float32, bfloat16 and float16"},
      {R"({"quant_type")", R"(["quant_type")", "quant_state"},
  };
  for (const auto& [old, text, message] : cases) {
    TempFolder folder;
    copy_with(folder, old, text);
    expect_error(ErrorKind::kInput, {message}, [&] { check_folder(folder.path()); });
  }
  TempFolder eight_bits;
  copy_with(eight_bits, R"("bnb_4bit_quant_type": "nf4")", R"("bnb_4bit_quant_type": "fp4")");
  expect_error(ErrorKind::kInput, {"quantization_config", "nf4"},
               [&] { read_hf_config(eight_bits.path()); });
}

TEST(Nf4Folders, NumbersThatAreNotFiniteAreRefusedByName) {
  std::vector<float> values(100, 1);
  values[70] = std::numeric_limits<float>::quiet_NaN();
  expect_error(ErrorKind::kInput, {"q_proj.weight", "element 70", "nan"}, [&] {
    quantize_tensor("q_proj.weight", {10, 10}, values.data(), {.dtype = Dtype::kF32});
  });
}

}  // namespace
}  // namespace bev
