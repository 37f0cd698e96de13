// Encoders against transformers (tests/golden/make_encoder_fixtures.py): outputs, losses, all
// gradients and ten AdamW steps of padded batches, on one rank and under layouts; files both ways.
#include "tests/support/golden_encoders.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "backend/cpu/cpu_kernels.h"
#include "base/file.h"
#include "bridge/hf_model.h"
#include "bridge/weight_files.h"
#include "bridge/weight_map.h"
#include "comm/world.h"
#include "data/batch_file.h"
#include "infer/embedding.h"
#include "infer/model_outputs.h"
#include "models/model.h"
#include "parallel/engine.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "verify/layouts.h"

namespace bev {
namespace {

using nlohmann::json;
using Numbers = std::vector<double>;

Numbers numbers(const TensorBytes& tensor) {
  EXPECT_EQ(tensor.dtype, Dtype::kF32);
  std::vector<float> values(static_cast<std::size_t>(tensor.shape.numel()));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return {values.begin(), values.end()};
}

double largest(const Numbers& values) {
  double most = 0;
  for (double value : values) most = std::max(most, std::abs(value));
  return most;
}

double largest_difference(const Numbers& a, const Numbers& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    most = std::isnan(a[i] - b[i]) ? INFINITY : std::max(most, std::abs(a[i] - b[i]));
  }
  return most;
}

EngineOptions options_of(const std::string& folder, const ParallelConfig& parallel) {
  EngineOptions options;
  options.model = read_hf_config(folder);
  options.parallel = parallel;
  options.parallel.data_parallel_size = std::max<std::int64_t>(parallel.data_parallel_size, 1);
  return options;
}

GlobalBatch batch_of(const std::string& folder, const ModelConfig& model) {
  return read_batch(join_path(folder, "batch.json"), batch_format(model));
}

// The rows of an output at the columns of a padded batch, zeros elsewhere.
Numbers padded_output(RankModel& model, const ModelOutput& output, const GlobalBatch& batch) {
  Numbers all;
  auto sample = batch.samples.begin();
  compute_output(model, output, batch.samples, 3, [&](std::span<const double> rows) {
    const TokenSample& from = *sample++;
    if (!output.by_token) return void(all.insert(all.end(), rows.begin(), rows.end()));
    const auto width = static_cast<std::size_t>(output.columns);
    Numbers row(static_cast<std::size_t>(batch.columns) * width);
    for (std::int32_t column : columns_of(from)) {
      std::copy_n(
          rows.begin(), width,
          row.begin() + static_cast<std::ptrdiff_t>(column) * static_cast<std::ptrdiff_t>(width));
      rows = rows.subspan(width);
    }
    all.insert(all.end(), row.begin(), row.end());
  });
  return all;
}

void expect_gradients(Engine& engine, const SafetensorsFile& expected) {
  WeightMap map(engine.model().options().model);
  ParamGather gather(engine.model(), ParamGather::What::kGradient);
  for (const ParamMapping& mapping : map.params()) {
    Tensor gradient = gather.gather(mapping.param);
    if (gradient.empty()) continue;
    for (std::size_t part = 0; part < mapping.tensors.size(); ++part) {
      const HfTensor& tensor = mapping.tensors[part];
      std::vector<float> ours(static_cast<std::size_t>(tensor.shape.numel()));
      split_param(mapping, part, gradient.view().data, gradient.dtype(), Dtype::kF32, ours.data());
      Numbers theirs = numbers(expected.tensor("grad." + tensor.name));
      // The bias of keys has none in exact arithmetic, and so only noise.
      const bool noise = tensor.name.ends_with("key.bias");
      const double scale = std::max(largest(theirs), noise ? 1e-1 : 1e-3);
      EXPECT_LT(largest_difference({ours.begin(), ours.end()}, theirs) / scale, 1e-4)
          << tensor.name;
    }
  }
}

class GoldenEncoder : public testing::TestWithParam<std::string> {
 protected:
  std::string folder() const { return test::encoder_folder(GetParam()); }
  json expected() const { return json::parse(read_file(join_path(folder(), "expected.json"))); }
  SafetensorsFile tensors() const {
    return SafetensorsFile(join_path(folder(), "expected.safetensors"));
  }
  bool has_loss() const { return expected().contains("loss"); }
};

TEST_P(GoldenEncoder, OutputsAreTransformers) {
  const SafetensorsFile wanted = tensors();
  for (const char* layout : {"tp1", "tp2sp", "pp2", "cp2"}) {
    SCOPED_TRACE(layout);
    if (!test::fits(read_hf_config(folder()), layout)) continue;
    const ParallelConfig parallel = parse_layouts(layout, {}).front();
    run_thread_ranks(static_cast<int>(mesh_shape(parallel).size()), {60.0}, [&](World& world) {
      EngineOptions options = options_of(folder(), parallel);
      options.gradients = options.optimizer = false;
      Engine engine(world, cpu_kernels(), options);
      load_hf_weights(engine, folder());
      const GlobalBatch batch = batch_of(folder(), options.model);
      std::size_t compared = 0;
      for (const ModelOutput& output : outputs_of(options.model)) {
        Numbers ours = padded_output(engine.model(), output, batch);
        // RoBERTa's classifier has the pooler's place, and transformers does not give its output.
        if (world.rank() != 0 || wanted.find(output.name) == nullptr) continue;
        EXPECT_LT(largest_difference(ours, numbers(wanted.tensor(output.name))), 2e-4)
            << output.name;
        ++compared;
      }
      EXPECT_TRUE(world.rank() != 0 || compared > 0);
    });
  }
}

TEST_P(GoldenEncoder, LossAndGradientsAreTransformers) {
  if (!has_loss()) return;
  const SafetensorsFile wanted = tensors();
  const double loss = expected()["loss"], norm = expected()["grad_norm"];
  std::vector<std::string> layouts = {"tp1", "cp2", "dp2zero1"};
  layouts.push_back(test::encoder_layout(read_hf_config(folder())));
  for (const std::string& layout : layouts) {
    SCOPED_TRACE(layout);
    if (!test::fits(read_hf_config(folder()), layout)) continue;
    const ParallelConfig parallel = parse_layouts(layout, {}).front();
    run_thread_ranks(static_cast<int>(mesh_shape(parallel).size()), {60.0}, [&](World& world) {
      Engine engine(world, cpu_kernels(), options_of(folder(), parallel));
      load_hf_weights(engine, folder());
      const GlobalBatch batch = batch_of(folder(), engine.model().options().model);
      std::vector<MicroBatch> batches = rank_micro_batches(engine.model().ctx(), batch.samples, 1);
      engine.prepare(batches);
      StepResult result = engine.gradients(batches, {1});
      EXPECT_NEAR(result.loss, loss, 2e-5);
      EXPECT_NEAR(result.grad_norm / norm, 1, 1e-4);
      expect_gradients(engine, wanted);
    });
  }
}

TEST_P(GoldenEncoder, TenAdamWStepsFollowTorch) {
  if (!has_loss()) return;
  const json wanted = expected()["adamw"];
  run_thread_ranks(1, {}, [&](World& world) {
    EngineOptions options = options_of(folder(), {});
    options.optim.adam_beta1 = wanted["beta1"];
    options.optim.adam_beta2 = wanted["beta2"];
    options.optim.adam_eps = wanted["eps"];
    Engine engine(world, cpu_kernels(), options);
    load_hf_weights(engine, folder());
    const GlobalBatch batch = batch_of(folder(), options.model);
    for (std::size_t i = 0; i < wanted["losses"].size(); ++i) {
      std::vector<MicroBatch> batches = rank_micro_batches(engine.model().ctx(), batch.samples, 2);
      engine.prepare(batches);
      StepInput input{static_cast<std::int64_t>(i) + 1, wanted["lr"].get<double>(),
                      wanted["weight_decay"], 1.0, wanted["clip_grad"]};
      StepResult result = engine.train_step(batches, input);
      EXPECT_NEAR(result.loss, wanted["losses"][i].get<double>(), 5e-4) << "step " << i;
      EXPECT_NEAR(result.grad_norm / wanted["grad_norms"][i].get<double>(), 1, 2e-3) << i;
    }
  });
}

TEST_P(GoldenEncoder, ExportIsTheInputBitForBit) {
  const TempFolder out;
  run_thread_ranks(1, {}, [&](World& world) {
    Engine engine(world, cpu_kernels(), options_of(folder(), {}));
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
  EXPECT_EQ(read_config_json(out.path("model")).texts("architectures"),
            read_config_json(folder()).texts("architectures"));
}

// Padding is left out, so that a batch with more of it is the same batch.
TEST_P(GoldenEncoder, PaddingDoesNotChangeTheLoss) {
  if (!has_loss()) return;
  run_thread_ranks(1, {}, [&](World& world) {
    EngineOptions options = options_of(folder(), {});
    options.dtype = Dtype::kF64;
    Engine engine(world, cpu_kernels(), options);
    load_hf_weights(engine, folder());
    const std::vector<TokenSample> samples = batch_of(folder(), options.model).samples;
    auto loss_of = [&](std::int64_t micro_batch_size) {
      std::vector<MicroBatch> batches =
          rank_micro_batches(engine.model().ctx(), samples, micro_batch_size);
      engine.prepare(batches);
      return engine.gradients(batches, {1}).loss;
    };
    const double together = loss_of(4);
    EXPECT_NEAR(loss_of(1), together, 1e-12);
    EXPECT_NEAR(loss_of(3), together, 1e-12);
    EXPECT_NEAR(together, expected()["loss"].get<double>(), 2e-5);
  });
}

std::string case_name(const testing::TestParamInfo<std::string>& info) { return info.param; }

INSTANTIATE_TEST_SUITE_P(Transformers, GoldenEncoder, testing::ValuesIn(test::encoder_fixtures()),
                         case_name);

// The mean of a row's final hidden states, of length 1, from those of transformers.
Numbers mean_of(const Numbers& hidden, const TokenSample& sample, std::size_t row,
                std::size_t columns, std::size_t width) {
  Numbers mean(width);
  for (std::int32_t column : columns_of(sample)) {
    const std::size_t at = (row * columns + static_cast<std::size_t>(column)) * width;
    for (std::size_t h = 0; h < width; ++h) mean[h] += hidden[at + h];
  }
  double squares = 0;
  for (double value : mean) squares += value * value;
  for (double& value : mean) value /= std::sqrt(squares);
  return mean;
}

TEST(EncoderEmbeddings, AreMeansOfTransformersHiddenStates) {
  for (const char* name : {"bert_bare", "modernbert_masked"}) {
    SCOPED_TRACE(name);
    const std::string folder = test::encoder_folder(name);
    const SafetensorsFile wanted(join_path(folder, "expected.safetensors"));
    const Numbers hidden = numbers(wanted.tensor("last_hidden_state"));
    run_thread_ranks(1, {}, [&](World& world) {
      EngineOptions options = options_of(folder, {});
      // Rows by themselves have no token types.
      const bool typed = options.model.encoder.token_types > 0;
      options.gradients = options.optimizer = false;
      Engine engine(world, cpu_kernels(), options);
      load_hf_weights(engine, folder);
      const GlobalBatch batch = batch_of(folder, options.model);
      std::vector<std::vector<std::int32_t>> rows;
      std::vector<std::size_t> compared;
      for (std::size_t i = 0; i < batch.samples.size(); ++i) {
        const TokenSample& sample = batch.samples[i];
        const auto* types =
            typed ? &std::get<std::vector<std::int32_t>>(sample.fields.at(0).values) : nullptr;
        rows.push_back(sample.tokens);
        if (types == nullptr || std::ranges::count(*types, 0) == std::ssize(*types)) {
          compared.push_back(i);
        }
      }
      const auto vectors =
          embeddings(engine.model(), rows, {.pooling = Pooling::kMean, .normalize = true});
      ASSERT_FALSE(compared.empty());
      for (std::size_t i : compared) {
        Numbers mean = mean_of(hidden, batch.samples[i], i, static_cast<std::size_t>(batch.columns),
                               static_cast<std::size_t>(options.model.hidden_size));
        EXPECT_LT(largest_difference(vectors[i], mean), 1e-5) << "row " << i;
      }
    });
  }
}

// A file may hold heads that the model of config.json has not, and older names of norms.
TEST(EncoderFiles, MayHaveMoreHeadsAndOlderNames) {
  const std::string from = test::encoder_folder("bert_pairs");
  TempFolder to;
  HfConfig config = read_config_json(from);
  config.set("architectures", std::vector<std::string>{"BertForMaskedLM"});
  to.write("config.json", config.dump());
  std::string file = read_file(join_path(from, "model.safetensors"));
  // The header keeps its length.
  for (auto [now, then] : {std::pair("LayerNorm.weight\":", "LayerNorm.gamma\" :"),
                           std::pair("LayerNorm.bias\":", "LayerNorm.beta\":")}) {
    const std::string_view name = now;
    for (std::size_t at = file.find(name); at != file.npos; at = file.find(name, at + 1)) {
      file.replace(at, name.size(), then);
    }
  }
  to.write("model.safetensors", file);
  run_thread_ranks(1, {}, [&](World& world) {
    Engine engine(world, cpu_kernels(), options_of(to.path(""), {}));
    load_hf_weights(engine, to.path(""));
    EXPECT_FALSE(engine.model().options().model.encoder.pooler);
  });
}

TEST(EncoderFiles, WindowsRefuseHolesInMasks) {
  const std::string folder = test::encoder_folder("modernbert_masked");
  const ModelConfig model = read_hf_config(folder);
  TempFolder to;
  const std::string path =
      to.write("b.json", R"({"input_ids": [[4, 5, 6]], "attention_mask": [[1, 0, 1]]})");
  expect_error(ErrorKind::kInput, {"attention_mask row 0 column 1", "window"},
               [&] { check_windows(model, read_batch(path, batch_format(model))); });
}

}  // namespace
}  // namespace bev
