#include "bridge/weight_map.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "base/text.h"
#include "bridge/convert.h"
#include "bridge/hf_model.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using test::golden_config;
using test::golden_models;

std::string folder_of(std::string_view model) { return join_path(test::golden_folder(), model); }

std::vector<std::byte> read(const ParamMapping& mapping, const WeightFiles& files, Dtype dtype) {
  std::vector<std::byte> value(static_cast<std::size_t>(mapping.shape.numel()) * size_of(dtype));
  read_param(mapping, files, dtype, value.data());
  return value;
}

TEST(WeightMap, UsesEveryGoldenTensorOnceAndRoundTripsItsBits) {
  for (const std::string& model : golden_models()) {
    WeightFiles files(folder_of(model));
    WeightMap map(from_hf(golden_config(model)));
    map.check(files);
    std::set<std::string> seen;
    for (const ParamMapping& mapping : map.params()) {
      std::vector<std::byte> value = read(mapping, files, Dtype::kF32);
      for (std::size_t part = 0; part < mapping.tensors.size(); ++part) {
        const HfTensor& tensor = mapping.tensors[part];
        EXPECT_TRUE(seen.insert(tensor.name).second) << model << " " << tensor.name;
        TensorBytes stored = files.tensor(tensor.name);
        std::vector<std::byte> out(stored.bytes.size());
        split_param(mapping, part, value.data(), Dtype::kF32, Dtype::kF32, out.data());
        EXPECT_EQ(std::memcmp(out.data(), stored.bytes.data(), out.size()), 0)
            << model << " " << tensor.name;
      }
    }
    std::vector<std::string> names = files.names();
    EXPECT_EQ(seen, std::set<std::string>(names.begin(), names.end())) << model;
  }
}

// transformers 5 may store all experts of a layer in one tensor.
TEST(WeightMap, ReadsExpertsThatAreStoredTogether) {
  for (const char* model : {"mixtral", "qwen2_moe", "qwen3_moe"}) {
    WeightFiles files(folder_of(model));
    WeightMap map(from_hf(golden_config(model)));
    std::vector<TensorSpec> specs;
    std::vector<std::vector<std::byte>> values;
    for (const ParamMapping& mapping : map.params()) {
      if (!mapping.whole_names.empty()) {
        specs.push_back({mapping.whole_names.front(), Dtype::kF32, mapping.shape});
        values.push_back(read(mapping, files, Dtype::kF32));
        continue;
      }
      for (const HfTensor& tensor : mapping.tensors) {
        specs.push_back({tensor.name, Dtype::kF32, tensor.shape});
        TensorBytes stored = files.tensor(tensor.name);
        values.emplace_back(stored.bytes.begin(), stored.bytes.end());
      }
    }
    TempFolder folder;
    WeightFilesWriter writer(join_path(folder.path(), "fused"), specs);
    for (std::size_t i = 0; i < specs.size(); ++i) writer.write(specs[i].name, values[i]);
    writer.commit();
    WeightFiles fused(join_path(folder.path(), "fused"));
    map.check(fused);
    EXPECT_LT(fused.names().size(), files.names().size());
    for (const ParamMapping& mapping : map.params()) {
      EXPECT_EQ(read(mapping, fused, Dtype::kBf16), read(mapping, files, Dtype::kBf16))
          << mapping.param;
    }
  }
}

TEST(WeightMap, ReadsAnyElementsOfAParameter) {
  std::mt19937 random(1);
  for (const std::string& model : golden_models()) {
    WeightFiles files(folder_of(model));
    WeightMap map(from_hf(golden_config(model)));
    for (const ParamMapping& mapping : map.params()) {
      std::vector<std::byte> whole = read(mapping, files, Dtype::kF32);
      StoredParam stored(mapping, files);
      for (int i = 0; i < 20; ++i) {
        auto numel = static_cast<std::uint64_t>(mapping.shape.numel());
        std::size_t begin = random() % numel, count = random() % (numel - begin + 1);
        std::vector<std::byte> some(4 * count);
        stored.read({static_cast<std::int64_t>(begin), static_cast<std::int64_t>(begin + count)},
                    Dtype::kF32, some.data());
        EXPECT_EQ(std::memcmp(some.data(), whole.data() + 4 * begin, some.size()), 0)
            << model << " " << mapping.param << " " << begin << " " << count;
      }
    }
  }
}

TEST(WeightMap, ExportListsEveryTensorWithItsShape) {
  for (const std::string& model : golden_models()) {
    WeightFiles files(folder_of(model));
    WeightMap map(from_hf(golden_config(model)));
    std::vector<ExportTensor> tensors = export_tensors(map, Dtype::kBf16);
    EXPECT_EQ(tensors.size(), files.names().size());
    for (const ExportTensor& tensor : tensors) {
      // Expert biases and rates of recurrences are f32 in models of 16 bits.
      bool wide = false;
      for (const char* end : {"e_score_correction_bias", ".A_log", ".dt_bias", ".D"}) {
        wide = wide || tensor.spec.name.ends_with(end);
      }
      EXPECT_EQ(tensor.spec.dtype, wide ? Dtype::kF32 : Dtype::kBf16) << tensor.spec.name;
      EXPECT_EQ(tensor.spec.shape, files.tensor(tensor.spec.name).shape) << tensor.spec.name;
      EXPECT_EQ(tensor.spec.name, map.params()[tensor.param].tensors[tensor.part].name);
    }
  }
}

// Element (row, column) of a stored fp32 tensor.
float element(const WeightFiles& files, const std::string& name, std::int64_t row,
              std::int64_t column) {
  TensorBytes tensor = files.tensor(name);
  float value;
  std::int64_t columns = tensor.shape.row_numel();
  std::memcpy(&value, tensor.bytes.data() + (row * columns + column) * 4, 4);
  return value;
}

struct TensorShard {
  std::string model, param;
  std::int64_t row, column;
  std::string tensor;
  std::int64_t tensor_row, tensor_column;
};

TEST(WeightMap, PutsElementsWhereTheyBelong) {
  const std::string qkv = "decoder.layers.1.self_attention.linear_qkv.";
  const std::string llama = "model.layers.1.self_attn.", neox = "gpt_neox.layers.1.attention.";
  const std::vector<TensorShard> places = {
      // 6 heads of 8, 2 of keys and values.
      {"llama_gqa", qkv + "weight", 47, 3, llama + "q_proj.weight", 47, 3},
      {"llama_gqa", qkv + "weight", 48, 3, llama + "k_proj.weight", 0, 3},
      {"llama_gqa", qkv + "weight", 79, 29, llama + "v_proj.weight", 15, 29},
      {"llama_gqa", "decoder.layers.0.mlp.linear_fc1.weight", 45, 2,
       "model.layers.0.mlp.up_proj.weight", 1, 2},
      {"llama_gqa", "decoder.layers.2.pre_mlp_layernorm.weight", 5, 0,
       "model.layers.2.post_attention_layernorm.weight", 5, 0},
      {"llama_tied_bias", qkv + "bias", 61, 0, llama + "k_proj.bias", 1, 0},
      {"gemma2", "decoder.layers.1.pre_mlp_layernorm.weight", 4, 0,
       "model.layers.1.pre_feedforward_layernorm.weight", 4, 0},
      {"gemma2", "decoder.layers.1.post_attention_layernorm.weight", 4, 0,
       "model.layers.1.post_attention_layernorm.weight", 4, 0},
      {"gpt2", qkv + "weight", 40, 7, "transformer.h.1.attn.c_attn.weight", 7, 40},
      {"gpt2", "decoder.layers.0.mlp.linear_fc2.weight", 3, 90, "transformer.h.0.mlp.c_proj.weight",
       90, 3},
      // 2 heads of 16: [q0 k0 v0 q1 k1 v1].
      {"gpt_neox", qkv + "weight", 16, 5, neox + "query_key_value.weight", 48, 5},
      {"gpt_neox", qkv + "weight", 32, 5, neox + "query_key_value.weight", 16, 5},
      {"gpt_neox", qkv + "bias", 95, 0, neox + "query_key_value.bias", 95, 0},
      {"gpt_neox", qkv + "bias", 64, 0, neox + "query_key_value.bias", 32, 0},
      {"gpt_neox", "output_layer.weight", 112, 31, "embed_out.weight", 112, 31},
  };
  for (const TensorShard& place : places) {
    WeightFiles files(folder_of(place.model));
    WeightMap map(from_hf(golden_config(place.model)));
    const ParamMapping& mapping = map.find(place.param);
    std::vector<std::byte> value = read(mapping, files, Dtype::kF32);
    float ours;
    std::memcpy(&ours, value.data() + (place.row * mapping.shape.row_numel() + place.column) * 4,
                4);
    EXPECT_EQ(ours, element(files, place.tensor, place.tensor_row, place.tensor_column))
        << place.model << " " << place.param << " " << place.row;
  }
}

// A copy of a golden model's weights under other names, with other tensors, or less.
class Edited {
 public:
  explicit Edited(std::string_view model) : files_(folder_of(model)) {
    for (const std::string& name : files_.names()) {
      TensorBytes tensor = files_.tensor(name);
      add(name, tensor.dtype, tensor.shape, {tensor.bytes.begin(), tensor.bytes.end()});
    }
  }
  void add(const std::string& name, Dtype dtype, Shape shape, std::vector<std::byte> bytes) {
    tensors_[name] = {{name, dtype, shape}, std::move(bytes)};
  }
  void rename(const std::string& from, const std::string& to) {
    auto node = tensors_.extract(from);
    ASSERT_FALSE(node.empty()) << from;
    node.key() = node.mapped().first.name = to;
    tensors_.insert(std::move(node));
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : tensors_) all.push_back(name);
    return all;
  }
  void strip(const std::string& prefix) {
    for (const std::string& name : names()) {
      if (name.starts_with(prefix)) rename(name, name.substr(prefix.size()));
    }
  }
  void remove(const std::string& name) { ASSERT_EQ(tensors_.erase(name), 1u) << name; }
  std::vector<std::byte>& bytes(const std::string& name) { return tensors_.at(name).second; }
  const TensorSpec& spec(const std::string& name) { return tensors_.at(name).first; }

  WeightFiles write() {
    std::vector<TensorSpec> specs;
    for (const auto& [name, tensor] : tensors_) specs.push_back(tensor.first);
    SafetensorsWriter writer(folder_.path("model.safetensors"), specs);
    for (const TensorSpec& spec : writer.tensors()) writer.write(spec.name, bytes(spec.name));
    writer.commit();
    return WeightFiles(folder_.path());
  }

 private:
  WeightFiles files_;
  std::map<std::string, std::pair<TensorSpec, std::vector<std::byte>>> tensors_;
  TempFolder folder_;
};

void expect_same_weights(const WeightMap& map, const WeightFiles& a, const WeightFiles& b) {
  map.check(a);
  map.check(b);
  for (const ParamMapping& mapping : map.params()) {
    EXPECT_EQ(read(mapping, a, Dtype::kF32), read(mapping, b, Dtype::kF32)) << mapping.param;
  }
}

TEST(WeightMap, AcceptsTheNamesOfOlderFiles) {
  {
    Edited gpt2("gpt2");
    gpt2.strip("transformer.");
    gpt2.add("h.0.attn.bias", Dtype::kU8, {1, 1, 4, 4}, std::vector<std::byte>(16));
    gpt2.add("h.1.attn.masked_bias", Dtype::kF32, {}, std::vector<std::byte>(4));
    WeightFiles files = gpt2.write();
    expect_same_weights(WeightMap(from_hf(golden_config("gpt2"))), WeightFiles(folder_of("gpt2")),
                        files);
  }
  {
    Edited neox("gpt_neox");
    neox.rename("embed_out.weight", "lm_head.weight");
    neox.add("gpt_neox.layers.0.attention.rotary_emb.inv_freq", Dtype::kF32, {2},
             std::vector<std::byte>(8));
    WeightFiles files = neox.write();
    expect_same_weights(WeightMap(from_hf(golden_config("gpt_neox"))),
                        WeightFiles(folder_of("gpt_neox")), files);
  }
}

// All experts of a layer in one tensor, as transformers holds them in memory.
void join_experts(Edited& files, const std::string& mlp, std::int64_t experts) {
  std::vector<std::byte> up, down;
  Shape up_shape, down_shape;
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const std::string name = concat(mlp, "experts.", expert, ".");
    up_shape = files.spec(name + "gate_proj.weight").shape;
    down_shape = files.spec(name + "down_proj.weight").shape;
    for (const char* part : {"gate_proj.weight", "up_proj.weight"}) {
      const std::vector<std::byte>& bytes = files.bytes(name + part);
      up.insert(up.end(), bytes.begin(), bytes.end());
      files.remove(name + part);
    }
    const std::vector<std::byte>& bytes = files.bytes(name + "down_proj.weight");
    down.insert(down.end(), bytes.begin(), bytes.end());
    files.remove(name + "down_proj.weight");
  }
  files.add(mlp + "experts.gate_up_proj", Dtype::kF32, {experts, 2 * up_shape[0], up_shape[1]}, up);
  files.add(mlp + "experts.down_proj", Dtype::kF32, {experts, down_shape[0], down_shape[1]}, down);
}

// Files of a model with a vision tower and multi-token prediction.
// transformers computes with the bias of the decoder, and may have tied the other one to it.
TEST(WeightMap, EncodersHaveTheBiasThatTransformersComputesWith) {
  for (const char* type : {"bert", "roberta"}) {
    auto name = [&](bool tied) {
      HfConfig hf = HfConfig::parse(concat(
          R"({"model_type": ")", type, R"(", "architectures": ["X)",
          R"(ForMaskedLM"], "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,)",
          R"( "num_attention_heads": 2, "vocab_size": 40, "max_position_embeddings": 20})"));
      hf.set("tie_word_embeddings", tied);
      WeightMap map(from_hf(hf));
      return map.find("output_layer.bias").tensors.front().name;
    };
    EXPECT_EQ(name(false).find(".decoder.bias") != std::string::npos, true) << type;
    EXPECT_EQ(name(true).find(".decoder.bias") == std::string::npos, true) << type;
  }
}

TEST(WeightMap, ReadsTheTextModelBesideAVisionTower) {
  for (const char* name : {"qwen3_5", "qwen3_5_moe"}) {
    SCOPED_TRACE(name);
    const ModelConfig model = from_hf(golden_config(name));
    Edited files(name);
    for (std::int64_t layer = 0; layer < (model.moe.any() ? model.num_layers : 0); ++layer) {
      join_experts(files, concat("model.layers.", layer, ".mlp."), model.moe.num_experts);
    }
    for (const std::string& tensor : files.names()) {
      const std::string head = "model.";
      if (!tensor.starts_with(head)) continue;
      files.rename(tensor, "model.language_model." + tensor.substr(head.size()));
    }
    for (const char* more : {"model.visual.patch_embed.proj.weight", "mtp.fc.weight"}) {
      files.add(more, Dtype::kF32, {2}, std::vector<std::byte>(8));
    }
    const WeightFiles written = files.write();
    expect_same_weights(WeightMap(model), WeightFiles(folder_of(name)), written);
  }
}

// Experts of GPT-OSS in MXFP4, against the numbers that it stands for, in the plain layout.
class PackedExperts {
 public:
  void replace(const std::string& name) {
    const Shape shape = plain_.spec(name).shape;  // [E, in, out]
    const std::int64_t experts = shape[0], in = shape[1], out = shape[2], blocks = in / 32;
    std::vector<std::byte> packed(static_cast<std::size_t>(experts * out * in / 2));
    std::vector<std::byte> scales(static_cast<std::size_t>(experts * out * blocks));
    for (std::byte& pair : packed) pair = static_cast<std::byte>(random_() % 256);
    for (std::byte& scale : scales) scale = static_cast<std::byte>(120 + random_() % 10);
    std::vector<float> numbers(static_cast<std::size_t>(shape.numel()));
    for (std::int64_t row = 0; row < experts * out; ++row) {
      for (std::int64_t i = 0; i < in; ++i) {
        auto pair = std::to_integer<int>(packed[static_cast<std::size_t>((row * in + i) / 2)]);
        auto scale = std::to_integer<int>(scales[static_cast<std::size_t>(row * blocks + i / 32)]);
        std::int64_t to = (row / out * in + i) * out + row % out;
        numbers[static_cast<std::size_t>(to)] =
            value_of(i % 2 == 0 ? pair % 16 : pair / 16) * std::ldexp(1.0f, scale - 127);
      }
    }
    std::memcpy(plain_.bytes(name).data(), numbers.data(), numbers.size() * sizeof(float));
    packed_.remove(name);
    packed_.add(name + "_blocks", Dtype::kU8, {experts, out, blocks, 16}, std::move(packed));
    packed_.add(name + "_scales", Dtype::kU8, {experts, out, blocks}, std::move(scales));
  }
  Edited& plain() { return plain_; }
  Edited& packed() { return packed_; }

 private:
  // Sign, two bits of exponent with bias 1, one of mantissa.
  static float value_of(int bits) {
    int exponent = bits / 2 % 4, mantissa = bits % 2;
    float size = exponent == 0 ? 0.5f * static_cast<float>(mantissa)
                               : std::ldexp(1 + 0.5f * static_cast<float>(mantissa), exponent - 1);
    return bits >= 8 ? -size : size;
  }

  Edited plain_{"gpt_oss"}, packed_{"gpt_oss"};
  std::mt19937 random_{3};
};

TEST(WeightMap, ExpandsExpertsInMxfp4) {
  WeightMap map(from_hf(golden_config("gpt_oss")));
  PackedExperts experts;
  for (const char* layer : {"0", "2"}) {
    for (const char* part : {"gate_up_proj", "down_proj"}) {
      experts.replace(concat("model.layers.", layer, ".mlp.experts.", part));
    }
  }
  WeightFiles plain = experts.plain().write(), packed = experts.packed().write();
  expect_same_weights(map, plain, packed);
  TempFolder converted;
  write_file(join_path(packed.folder(), "config.json"), golden_config("gpt_oss").dump());
  convert_hf(packed.folder(), {converted.path("out")});
  WeightFiles expanded(converted.path("out"));
  expect_same_weights(map, plain, expanded);
  EXPECT_EQ(expanded.find("model.layers.0.mlp.experts.down_proj")->dtype, Dtype::kBf16);
  EXPECT_EQ(expanded.find("model.layers.1.mlp.experts.down_proj")->dtype, Dtype::kF32);
  const std::string scales = "model.layers.0.mlp.experts.down_proj_scales";
  experts.packed().remove(scales);
  WeightFiles broken = experts.packed().write();
  expect_error(ErrorKind::kInput, {scales, "MXFP4"}, [&] { map.check(broken); });
}

TEST(WeightMap, TiedHeadsMayBeStoredWhenTheyAreEqual) {
  WeightMap map(from_hf(golden_config("qwen3_tied")));
  const std::string embedding = "model.embed_tokens.weight";
  Edited both("qwen3_tied");
  TensorSpec spec = both.spec(embedding);
  both.add("lm_head.weight", spec.dtype, spec.shape, both.bytes(embedding));
  WeightFiles equal = both.write();
  expect_same_weights(map, WeightFiles(folder_of("qwen3_tied")), equal);
  both.bytes("lm_head.weight")[5] ^= std::byte{1};
  WeightFiles unequal = both.write();
  expect_error(ErrorKind::kInput,
               {"lm_head.weight differs from model.embed_tokens.weight", "tie_word_embeddings"},
               [&] { map.check(unequal); });
  Edited head_only("qwen3_tied");
  head_only.rename(embedding, "lm_head.weight");
  WeightFiles files = head_only.write();
  expect_same_weights(map, WeightFiles(folder_of("qwen3_tied")), files);
}

TEST(WeightMap, EverythingWrongWithAFileIsListed) {
  WeightMap map(from_hf(golden_config("llama_gqa")));
  Edited edited("llama_gqa");
  edited.remove("lm_head.weight");
  edited.rename("model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_project.weight");
  edited.add("model.norm.weight", Dtype::kF32, {31}, std::vector<std::byte>(124));
  edited.add("model.layers.0.input_layernorm.weight", Dtype::kI32, {30},
             std::vector<std::byte>(120));
  WeightFiles files = edited.write();
  expect_error(ErrorKind::kInput,
               {"the weights do not fit config.json", "lm_head.weight is missing",
                "model.layers.1.mlp.up_proj.weight is missing",
                "model.layers.1.mlp.up_project.weight is not a weight of this model",
                "model.norm.weight has shape [31], config.json asks for [30]",
                "model.layers.0.input_layernorm.weight is stored as I32"},
               [&] { map.check(files); });
  std::vector<float> out(31);
  expect_error(
      ErrorKind::kInput, {"model.norm.weight: has shape [31], but the model needs [30]"}, [&] {
        read_param(map.find("decoder.final_layernorm.weight"), files, Dtype::kF32, out.data());
      });
  expect_error(ErrorKind::kInput, {"lm_head.weight"}, [&] {
    std::vector<float> head(97 * 30);
    read_param(map.find("output_layer.weight"), files, Dtype::kF32, head.data());
  });
}

TEST(WeightMap, ManyProblemsAreCut) {
  WeightMap map(from_hf(golden_config("llama_gqa")));
  WeightFiles other(folder_of("gpt2"));
  expect_error(ErrorKind::kInput, {"model.embed_tokens.weight is missing", " more"},
               [&] { map.check(other); });
}

TEST(WeightMap, AConfigurationOutsideOfTheFamilyIsAnError) {
  ModelConfig config = preset("llama-tiny");
  config.norm_placement = NormPlacement::kPreAndPost;
  expect_error(ErrorKind::kConfig, {"llama models have no weights for", "post_attention_layernorm"},
               [&] { WeightMap map(config); });
}

template <class To>
To converted(double value) {
  To out;
  convert_elements({&value, Dtype::kF64}, {&out, DtypeOf<To>::value}, 1);
  return out;
}

TEST(Convert, RoundsToNearestEvenOnce) {
  // Just above the middle of two bf16: rounding to float first would land on the middle.
  EXPECT_EQ(float(converted<Bf16>(1 + 0x1p-8 + 0x1p-40)), 1 + 0x1p-7);
  EXPECT_EQ(float(converted<Bf16>(1 + 0x1p-8)), 1);
  EXPECT_EQ(float(converted<Bf16>(1 + 3 * 0x1p-8 - 0x1p-40)), 1 + 0x1p-7);
  EXPECT_EQ(float(converted<F16>(1 + 0x1p-11 + 0x1p-50)), 1 + 0x1p-10);
  EXPECT_EQ(float(converted<F16>(-1 - 0x1p-11)), -1);
  EXPECT_EQ(float(converted<F16>(0x1p-25 + 0x1p-60)), 0x1p-24);
  EXPECT_EQ(float(converted<F16>(0x1p-25)), 0);
  EXPECT_EQ(float(converted<F16>(65519.999999)), 65504);
  EXPECT_TRUE(std::isinf(float(converted<F16>(65520))));
  EXPECT_TRUE(std::isinf(float(converted<Bf16>(1e300))));
  EXPECT_TRUE(std::isinf(float(converted<Bf16>(-std::numeric_limits<double>::infinity()))));
  EXPECT_TRUE(std::isnan(float(converted<Bf16>(std::nan("")))));
  EXPECT_TRUE(std::signbit(float(converted<Bf16>(-1e-320))));
  EXPECT_EQ(converted<float>(0.1), 0.1f);
}

TEST(Convert, WideningIsExactAndUnalignedMemoryWorks) {
  std::vector<std::byte> from(1 + 2 * 65536), to(3 + 4 * 65536), back(1 + 2 * 65536);
  for (unsigned bits = 0; bits < 65536; ++bits) {
    auto half = static_cast<std::uint16_t>(bits);
    std::memcpy(&from[1 + 2 * bits], &half, 2);
  }
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    convert_elements({&from[1], dtype}, {&to[3], Dtype::kF32}, 65536);
    convert_elements({&to[3], Dtype::kF32}, {&back[1], dtype}, 65536);
    for (unsigned bits = 0; bits < 65536; ++bits) {
      float value;
      std::memcpy(&value, &to[3 + 4 * bits], 4);
      if (std::isnan(value)) continue;
      ASSERT_EQ(std::memcmp(&from[1 + 2 * bits], &back[1 + 2 * bits], 2), 0) << bits;
    }
  }
}

TEST(Convert, TransposesAnyShape) {
  constexpr std::int64_t kRows = 37, kColumns = 70;
  std::vector<float> from(kRows * kColumns);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  std::vector<double> to(from.size());
  transpose_elements({from.data(), Dtype::kF32}, {to.data(), Dtype::kF64}, kRows, kColumns);
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t column = 0; column < kColumns; ++column) {
      ASSERT_EQ(to[static_cast<std::size_t>(column * kRows + row)], row * kColumns + column);
    }
  }
}

TEST(WeightMap, ConvertsDtypesBothWays) {
  WeightFiles files(folder_of("gpt_neox"));
  WeightMap map(from_hf(golden_config("gpt_neox")));
  const ParamMapping& mapping = map.find("decoder.layers.0.self_attention.linear_qkv.weight");
  std::vector<std::byte> exact = read(mapping, files, Dtype::kF64);
  std::vector<std::byte> out(exact.size() / 2);
  split_param(mapping, 0, exact.data(), Dtype::kF64, Dtype::kF32, out.data());
  TensorBytes stored = files.tensor(mapping.tensors[0].name);
  EXPECT_EQ(std::memcmp(out.data(), stored.bytes.data(), out.size()), 0);
  std::vector<std::byte> rounded = read(mapping, files, Dtype::kBf16);
  for (std::int64_t i = 0; i < mapping.shape.numel(); ++i) {
    double value;
    Bf16 half;
    std::memcpy(&value, &exact[static_cast<std::size_t>(i) * 8], 8);
    std::memcpy(&half, &rounded[static_cast<std::size_t>(i) * 2], 2);
    ASSERT_EQ(half.bits, Bf16(static_cast<float>(value)).bits);
  }
}

}  // namespace
}  // namespace bev
