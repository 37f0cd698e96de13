// Weights that drift apart, and tensors of a step in files.
#include "train/weight_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cpu/cpu_kernels.h"
#include "base/file.h"
#include "bridge/safetensors.h"
#include "data/batch.h"
#include "tests/support/layouts.h"
#include "tests/support/temp_folder.h"
#include "train/spike_watch.h"
#include "train/tensor_files.h"
#include "verify/layouts.h"

namespace bev::test {
namespace {

using testing::HasSubstr;

// What the ranks of a layout find after `rank` has changed one element of a weight.
std::vector<std::string> findings(const std::string& layout, const std::string& weight, int rank) {
  EngineOptions options;
  options.model = mixtral_like();
  options.parallel = parse_layouts(layout, {}).at(0);
  const auto ranks = static_cast<std::size_t>(mesh_shape(options.parallel).size());
  std::vector<std::string> found(ranks);
  run_thread_ranks(static_cast<int>(ranks), {}, [&](World& world) {
    Engine engine(world, cpu_kernels(), options);
    EXPECT_EQ(find_differing_weights(engine.model()), "");
    for (const Param* param : engine.model().store().params()) {
      if (param->name != weight || world.rank() != rank) continue;
      View kept = engine.model().store().kept_value(*param).value;
      kept.as<float>()[kept.numel() - 1] += 1e-6f;
    }
    found[static_cast<std::size_t>(world.rank())] = find_differing_weights(engine.model());
  });
  return found;
}

TEST(WeightCheck, NamesTheRankThatDiffers) {
  const std::string norm = "decoder.final_layernorm.weight";
  for (const std::string& text : findings("dp3", norm, 1)) {
    EXPECT_EQ(text, "weight " + norm + " of rank 1 differs from that of rank 0, 2");
  }
  const std::string experts = "decoder.layers.1.mlp.experts.linear_fc2.weight";
  for (const std::string& text : findings("dp4,ep2", experts, 3)) {
    EXPECT_EQ(text, "weight " + experts + " of rank 3 differs from that of rank 1");
  }
  for (const std::string& text : findings("dp4zero3instances2", norm, 2)) {
    EXPECT_THAT(text, HasSubstr(norm));
  }
}

TEST(SpikeWatch, ComparesWithTheFirstHundred) {
  SpikeWatch watch;
  EXPECT_FALSE(watch.add(1.0 / 0.0));
  for (int i = 0; i < 99; ++i) EXPECT_FALSE(watch.add(-1000.0 + i));
  EXPECT_FALSE(watch.add(20000));
  EXPECT_FALSE(watch.add(199999));
  EXPECT_TRUE(watch.add(-200000));
  EXPECT_FALSE(watch.add(0.0 / 0.0));
}

TEST(TensorFiles, HoldResultsAndGradientsOfTheStep) {
  TempFolder folder;
  run_thread_ranks(2, {}, [&](World& world) {
    EngineOptions options;
    options.model = tiny_llama();
    options.parallel = parse_layouts("dp2zero2", {}).at(0);
    Engine engine(world, cpu_kernels(), options);
    std::vector<MicroBatch> batches = rank_micro_batches(
        engine.model().ctx(), random_samples(options.model.vocab_size, 2, 9, 5), 1);
    StepInput input{.iteration = 10};
    save_step_tensors(engine, batches, input, {folder.path("run"), true, true, true});
    const std::string file = concat("/iter_0000010/rank_0000", world.rank(), ".safetensors");
    const SafetensorsFile wgrads(folder.path("run/wgrads" + file));
    EXPECT_EQ(wgrads.tensors().size(), engine.model().store().params().size());
    engine.gradients(batches, input);
    for (const Param* param : engine.model().store().params()) {
      WeightLease expected = engine.model().store().local_gradient(*param);
      const TensorBytes saved = wgrads.tensor(param->name);
      EXPECT_EQ(saved.shape, param->local);
      EXPECT_EQ(std::memcmp(saved.bytes.data(), expected.view.data, saved.bytes.size()), 0)
          << param->name;
    }
    const SafetensorsFile activations(folder.path("run/activations" + file));
    const SafetensorsFile dgrads(folder.path("run/dgrads" + file));
    EXPECT_GT(activations.tensors().size(), 20u);
    EXPECT_GT(dgrads.tensors().size(), 20u);
    EXPECT_THAT(activations.tensors()[5].name, HasSubstr("000005.layer.0."));
  });
}

}  // namespace
}  // namespace bev::test
