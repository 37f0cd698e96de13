// Embeddings against hidden states of plain forwards, under every layout.
#include "infer/embedding.h"

#include "tests/infer/engine_rig.h"

namespace bev {
namespace {

using namespace test;

using Vectors = std::vector<std::vector<double>>;

EngineOptions layout_options(const Case& test_case, int cp, bool sequence_parallel) {
  EngineOptions options = test::engine_options(test_case);
  options.parallel.context_parallel_size = cp;
  options.parallel.sequence_parallel = sequence_parallel;
  return options;
}

// What world rank 0 gets.
Vectors embed(const Case& test_case, const Prompts& rows, const EmbeddingOptions& wanted,
              int cp = 1, bool sequence_parallel = false) {
  Vectors out;
  int ranks = test_case.tp * test_case.pp * test_case.dp * cp;
  run_thread_ranks(ranks, {60.0}, [&](World& world) {
    Engine engine(world, *test_case.kernels, layout_options(test_case, cp, sequence_parallel));
    Vectors mine = embeddings(engine.model(), rows, wanted);
    EXPECT_EQ(mine.size(), world.rank() == 0 ? rows.size() : 0);
    if (world.rank() == 0) out = std::move(mine);
  });
  return out;
}

// One row at a time, on one rank.
Vectors expected_vectors(const Case& test_case, const Prompts& rows,
                         const EmbeddingOptions& wanted) {
  Vectors out;
  with_engine(test_case, [&](Engine& engine) {
    RankModel& model = engine.model();
    for (const auto& tokens : rows) {
      TokenSample sample;
      sample.tokens = tokens;
      sample.targets.assign(tokens.size(), -1);
      sample.weights.assign(tokens.size(), 0);
      sample.documents = {static_cast<std::int32_t>(tokens.size())};
      MicroBatch batch = make_micro_batch(model.ctx(), std::span(&sample, 1), 0);
      std::vector<Var> outputs;
      model.stage().forward(model.ctx(), batch, {}, outputs);
      const std::vector<double> hidden = model.ctx().download<double>(outputs[0].tensor);
      std::size_t width = hidden.size() / tokens.size();
      std::vector<double>& row = out.emplace_back(width);
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        bool counts = wanted.pooling == Pooling::kMean ||
                      t == (wanted.pooling == Pooling::kCls ? 0 : tokens.size() - 1);
        for (std::size_t h = 0; h < width && counts; ++h) row[h] += hidden[t * width + h];
      }
      double squares = 0;
      for (double& value : row) {
        if (wanted.pooling == Pooling::kMean) value /= static_cast<double>(tokens.size());
        squares += value * value;
      }
      for (double& value : row) {
        if (wanted.normalize) value /= std::sqrt(squares);
      }
    }
  });
  return out;
}

void expect_equal(const Vectors& actual, const Vectors& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].size(), expected[i].size());
    for (std::size_t h = 0; h < actual[i].size(); ++h) {
      EXPECT_NEAR(actual[i][h], expected[i][h], tolerance) << "row " << i << ", " << h;
    }
  }
}

TEST(Embedding, PoolsTheFinalHiddenStatesOfAWholeForward) {
  for (const ModelConfig& model : {tiny_gpt(), windowed_llama()}) {
    Case test_case{model};
    Prompts rows = make_prompts(model, {5, 1, 9, 2, 13});
    for (Pooling pooling : {Pooling::kCls, Pooling::kMean, Pooling::kLast}) {
      for (bool normalize : {false, true}) {
        EmbeddingOptions wanted{.pooling = pooling, .normalize = normalize};
        Vectors expected = expected_vectors(test_case, rows, wanted);
        expect_equal(embed(test_case, rows, wanted), expected, 1e-12);
        wanted.batch_tokens = 6;  // several micro-batches, of which one is longer
        expect_equal(embed(test_case, rows, wanted), expected, 1e-12);
      }
    }
  }
}

TEST(Embedding, LayoutsGiveOneRanksVectors) {
  Case one{tiny_llama()};
  Prompts rows = make_prompts(one.model, {5, 1, 9, 2, 13, 8, 3});
  Case tp = one, pp = one, dp = one, all = one;
  tp.tp = 2, pp.pp = 2, dp.dp = 2, all.tp = all.pp = all.dp = 2;
  for (Pooling pooling : {Pooling::kMean, Pooling::kLast}) {
    EmbeddingOptions wanted{.pooling = pooling, .batch_tokens = 12};
    Vectors expected = embed(one, rows, wanted);
    for (const Case& layout : {tp, pp, dp, all}) {
      expect_equal(embed(layout, rows, wanted), expected, 1e-12);
    }
    expect_equal(embed(one, rows, wanted, 2), expected, 1e-12);
    expect_equal(embed(tp, rows, wanted, 1, true), expected, 1e-12);
    // More replicas than rows.
    Prompts single = {rows[0]};
    expect_equal(embed(dp, single, wanted), {expected[0]}, 1e-12);
  }
}

TEST(Embedding, OtherDtypesComeWithinTheirRounding) {
  Case test_case{tiny_llama()};
  Prompts rows = make_prompts(test_case.model, {5, 1, 9});
  for (Pooling pooling : {Pooling::kMean, Pooling::kLast}) {
    EmbeddingOptions wanted{.pooling = pooling, .normalize = true};
    Vectors expected = embed(test_case, rows, wanted);
    Case f32 = test_case, bf16 = test_case;
    f32.dtype = Dtype::kF32, bf16.dtype = Dtype::kBf16;
    expect_equal(embed(f32, rows, wanted), expected, 1e-5);
    expect_equal(embed(bf16, rows, wanted), expected, 0.05);
  }
}

TEST(Embedding, RowsThatCannotBeEmbeddedAreErrors) {
  Case test_case{tiny_gpt()};
  auto refuse = [&](std::vector<std::int32_t> row, const std::string& part) {
    expect_error(ErrorKind::kInput, {"row 1", part}, [&] {
      embed(test_case, {{1, 2}, std::move(row)}, {});
    });
  };
  refuse({}, "gives no token");
  refuse({3, static_cast<std::int32_t>(test_case.model.vocab_size)}, "vocabulary");
  auto positions = static_cast<std::size_t>(test_case.model.max_position_embeddings);
  refuse(std::vector<std::int32_t>(positions + 1, 1), "positions");
  EXPECT_TRUE(embed(test_case, {}, {}).empty());
}

}  // namespace
}  // namespace bev
