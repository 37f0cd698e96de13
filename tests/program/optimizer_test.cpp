// optimizer step, as a user calls it: weights of the reference packages
// (tests/golden/make_optimizers.py), and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "bridge/safetensors.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kGolden = BEV_SOURCE_DIR "/tests/golden/optimizers/";

std::vector<double> numbers(const SafetensorsFile& file, const std::string& name) {
  const TensorBytes tensor = file.tensor(name);
  std::vector<double> out(static_cast<std::size_t>(tensor.shape.numel()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    float narrow = 0;
    if (tensor.dtype == Dtype::kF64) {
      std::memcpy(&out[i], tensor.bytes.data() + i * sizeof(double), sizeof(double));
      continue;
    }
    std::memcpy(&narrow, tensor.bytes.data() + i * sizeof narrow, sizeof narrow);
    out[i] = narrow;
  }
  return out;
}

class OptimizerStep : public testing::Test {
 protected:
  Outcome run(const std::string& words) {
    return run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron optimizer step ", words));
  }

  struct Given {
    std::string name;
    Shape shape;
    std::vector<float> values;
  };
  void write(const std::vector<Given>& tensors) {
    std::vector<TensorSpec> specs;
    for (const Given& tensor : tensors) specs.push_back({tensor.name, Dtype::kF32, tensor.shape});
    SafetensorsWriter writer(folder_.path("in.safetensors"), specs);
    for (const Given& tensor : tensors) {
      writer.write(tensor.name, std::as_bytes(std::span(tensor.values)));
    }
    writer.commit();
  }

  TempFolder folder_;
};

TEST_F(OptimizerStep, GivesTheWeightsOfTheReferencePackages) {
  const json golden = json::parse(read_file(kGolden + "cases.json"));
  const SafetensorsFile input(kGolden + "input.safetensors");
  const SafetensorsFile expected(kGolden + "expected.safetensors");
  std::string rows;
  for (const auto& size : golden["qkv_rows"]) rows += concat(" ", size.get<std::int64_t>());
  for (const auto& [name, wanted] : golden["cases"].items()) {
    SCOPED_TRACE(name);
    for (const bool fp64 : {false, true}) {
      std::string flags = join(wanted["flags"].get<std::vector<std::string>>(), " ");
      Outcome outcome = run(concat(flags, " --qkv-rows", rows, fp64 ? " --fp64" : "", " --input ",
                                   kGolden, "input.safetensors --output out.safetensors"));
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      const SafetensorsFile made(folder_.path("out.safetensors"));
      for (const std::string weight : wanted["weights"]) {
        const std::vector<double> from = numbers(input, weight), got = numbers(made, weight),
                                  to = numbers(expected, concat(name, "/", weight));
        double largest = 0, worst = 0;
        for (std::size_t i = 0; i < to.size(); ++i) {
          largest = std::max(largest, std::abs(to[i] - from[i]));
          worst = std::max(worst, std::abs(to[i] - got[i]));
        }
        EXPECT_LE(worst, wanted["tolerance"].get<double>() * largest) << weight << " fp64 " << fp64;
      }
    }
  }
}

TEST_F(OptimizerStep, TakesScalarsAndEmbeddingsAndOneStep) {
  write({{"s", {}, {1}},
         {"s.grad.0", {}, {0.5}},
         {"embedding.x", {2, 2}, {1, 2, 3, 4}},
         {"embedding.x.grad.0", {2, 2}, {1, -1, 0, 2}}});
  Outcome outcome =
      run("--optimizer muon --muon-scalar-optimizer lion --lr 0.5 --weight-decay 0 --input "
          "in.safetensors --output out.safetensors");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out)["steps"], 1);
  const SafetensorsFile made(folder_.path("out.safetensors"));
  EXPECT_EQ(numbers(made, "s"), std::vector<double>{0.5});
  EXPECT_EQ(numbers(made, "embedding.x"), (std::vector<double>{0.5, 2.5, 3, 3.5}));
}

TEST_F(OptimizerStep, RefusesWhatItCannotPair) {
  const auto refusal = [&](const std::vector<Given>& tensors) {
    write(tensors);
    Outcome outcome = run("--input in.safetensors --output out.safetensors");
    EXPECT_EQ(outcome.code, 2);
    EXPECT_FALSE(path_exists(folder_.path("out.safetensors")));
    return outcome.err;
  };
  const Given w{"w", {2}, {1, 2}}, first{"w.grad.0", {2}, {1, 2}}, third{"w.grad.2", {2}, {1, 2}};
  EXPECT_THAT(refusal({w}), HasSubstr("w has no gradient w.grad.0"));
  EXPECT_THAT(refusal({w, first, third}), HasSubstr("w.grad.1 is missing"));
  EXPECT_THAT(refusal({first}), HasSubstr("w.grad.0 is a gradient of w, which is not there"));
  EXPECT_THAT(refusal({w, {"w.grad.0", {1, 2}, {1, 2}}}), HasSubstr("w.grad.0 is [1, 2]"));
  EXPECT_THAT(refusal({w, first, {"v", {1}, {1}}, {"v.grad.0", {1}, {1}}, {"v.grad.1", {1}, {1}}}),
              HasSubstr("gradients"));
  write({w, first});
  EXPECT_THAT(run("--output o").err, HasSubstr("--input: is missing"));
  EXPECT_THAT(run("--fp64 --bf16 --input in.safetensors --output o").err, HasSubstr("--fp64"));
}

}  // namespace
}  // namespace bev
