// Tiny training runs in FP8.
#pragma once

#include <algorithm>

#include "backend/cpu/cpu_kernels.h"
#include "comm/world.h"
#include "tests/support/layouts.h"

namespace bev::test {

// Sizes that two tensor-parallel ranks can split with any recipe.
inline ModelConfig fp8_llama(bool blocks) {
  ModelConfig model = tiny_llama();
  model.num_layers = 2;
  model.hidden_size = blocks ? 128 : 32;
  model.num_attention_heads = 4;
  model.num_query_groups = 2;
  model.kv_channels = blocks ? 128 : 16;
  model.ffn_hidden_size = blocks ? 256 : 64;
  model.init_method_std = 0.1;
  return model;
}

inline TinyRun fp8_run(Fp8Scaling recipe) {
  TinyRun run;
  run.model = fp8_llama(recipe == Fp8Scaling::kBlockwise);
  run.dtype = Dtype::kF32;
  run.micro_batch_size = 2;
  run.fp8.fp8_format = Fp8FormatChoice::kHybrid;
  run.fp8.fp8_recipe = recipe;
  return run;
}

// Calls body(engine) on every rank of a run.
template <class Body>
void with_engines(const TinyRun& run, const Body& body) {
  EngineOptions options;
  options.model = run.model;
  options.parallel = run.parallel;
  options.parallel.data_parallel_size = std::max<std::int64_t>(run.parallel.data_parallel_size, 1);
  options.dtype = run.dtype;
  options.fp8 = run.fp8;
  auto ranks = static_cast<int>(mesh_shape(options.parallel).size());
  run_thread_ranks(ranks, {}, [&](World& world) {
    Engine engine(world, cpu_kernels(), options);
    body(engine);
  });
}

}  // namespace bev::test
