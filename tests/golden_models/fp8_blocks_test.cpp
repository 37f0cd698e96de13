// DeepSeek-V3's own files: 8-bit floats with scales of blocks, against what torch makes of them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_kernels.h"
#include "base/file.h"
#include "bridge/convert.h"
#include "bridge/hf_model.h"
#include "bridge/weight_files.h"
#include "bridge/weight_map.h"
#include "comm/world.h"
#include "data/batch.h"
#include "data/token_file.h"
#include "parallel/engine.h"
#include "tests/support/expect_error.h"
#include "tests/support/logits.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

const std::string kFolder = BEV_SOURCE_DIR "/tests/golden/fp8_blocks";

std::vector<float> floats(const TensorBytes& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.shape.numel()));
  EXPECT_EQ(tensor.dtype, Dtype::kF32);
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

// A copy of the folder with other text in its files, of the same length where it is a header's.
void copy_with(const TempFolder& to, const std::string& file, const std::string& old,
               const std::string& text) {
  for (const std::string& name : list_directory(kFolder)) {
    std::string content = read_file(join_path(kFolder, name));
    for (std::size_t at = 0; name == file && (at = content.find(old, at)) != content.npos;) {
      content.replace(at, old.size(), text);
      at += text.size();
    }
    to.write(name, content);
  }
}

TEST(Fp8Blocks, WeightsAreTorchsToTheBit) {
  WeightFiles files(kFolder);
  WeightMap map(read_hf_config(kFolder));
  map.check(files);
  SafetensorsFile expected(join_path(kFolder, "expected.safetensors"));
  std::size_t compared = 0;
  for (const ParamMapping& mapping : map.params()) {
    std::vector<float> whole(static_cast<std::size_t>(mapping.shape.numel()));
    read_param(mapping, files, Dtype::kF32, whole.data());
    std::vector<Bf16> rounded(whole.size());
    read_param(mapping, files, Dtype::kBf16, rounded.data());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      ASSERT_EQ(rounded[i].bits, Bf16(whole[i]).bits) << mapping.param << " " << i;
    }
    for (std::size_t part = 0; part < mapping.tensors.size(); ++part) {
      const HfTensor& tensor = mapping.tensors[part];
      if (expected.find(tensor.name) == nullptr) continue;
      std::vector<float> ours(static_cast<std::size_t>(tensor.shape.numel()));
      split_param(mapping, part, whole.data(), Dtype::kF32, Dtype::kF32, ours.data());
      EXPECT_EQ(ours, floats(expected.tensor(tensor.name))) << tensor.name;
      ++compared;
      // Any range gives the same numbers.
      Range range = *elements_of_part(mapping, part);
      for (std::int64_t begin : {std::int64_t{0}, std::int64_t{127}, std::int64_t{1000}}) {
        std::vector<float> some(777);
        StoredParam(mapping, files)
            .read({range.begin + begin, range.begin + begin + 777}, Dtype::kF32, some.data());
        EXPECT_TRUE(std::equal(some.begin(), some.end(), ours.begin() + begin)) << tensor.name;
      }
    }
  }
  EXPECT_EQ(compared, 3u);
}

std::vector<float> logits_of(Engine& engine) {
  TokenRows rows =
      read_token_rows(join_path(kFolder, "tokens.json"), engine.model().options().model.vocab_size);
  std::vector<TokenSample> samples;
  for (std::size_t i = 0; i < rows.input_ids.size(); ++i) {
    samples.push_back(labelled_sample(rows.input_ids[i], rows.labels[i]));
  }
  MicroBatch batch = make_micro_batch(engine.model().ctx(), samples, 0);
  return engine.model().ctx().download<float>(test::whole_logits(engine.model(), batch));
}

TEST(Fp8Blocks, TheModelComputesTransformersLogits) {
  SafetensorsFile expected(join_path(kFolder, "expected.safetensors"));
  std::vector<float> wanted = floats(expected.tensor("logits"));
  run_thread_ranks(1, {60}, [&](World& world) {
    EngineOptions options;
    options.model = read_hf_config(kFolder);
    Engine engine(world, cpu_kernels(), options);
    load_hf_weights(engine, kFolder);
    std::vector<float> logits = logits_of(engine);
    ASSERT_EQ(logits.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(logits[i], wanted[i], 2e-4) << i;
  });
}

TEST(Fp8Blocks, AConvertedFolderIsPlainBf16) {
  TempFolder folder;
  convert_hf(kFolder, {folder.path("plain")});
  WeightFiles plain(folder.path("plain")), packed(kFolder);
  WeightMap map(read_hf_config(folder.path("plain")));
  map.check(plain);
  for (const ParamMapping& mapping : map.params()) {
    std::vector<Bf16> one(static_cast<std::size_t>(mapping.shape.numel())), other(one.size());
    read_param(mapping, plain, Dtype::kBf16, one.data());
    read_param(mapping, packed, Dtype::kBf16, other.data());
    EXPECT_EQ(std::memcmp(one.data(), other.data(), one.size() * sizeof(Bf16)), 0) << mapping.param;
  }
  EXPECT_FALSE(read_config_json(folder.path("plain")).truthy("quantization_config"));
}

TEST(Fp8Blocks, WhatDoesNotFitIsNamed) {
  TempFolder scales, blocks;
  copy_with(scales, "model.safetensors", "q_b_proj.weight_scale_inv", "q_b_proj.weight_scale_xyz");
  expect_error(ErrorKind::kInput,
               {"q_b_proj.weight is stored as F8_E4M3 without its scales",
                "q_b_proj.weight_scale_xyz is not a weight"},
               [&] {
                 WeightFiles files(scales.path());
                 WeightMap(read_hf_config(scales.path())).check(files);
               });
  copy_with(blocks, "config.json", "   128,", "   64,");
  expect_error(ErrorKind::kInput, {"quantization_config", "weight_block_size [128, 128]"},
               [&] { read_hf_config(blocks.path()); });
}

}  // namespace
}  // namespace bev
