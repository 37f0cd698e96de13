#include "tests/support/layouts.h"

#include <algorithm>

#include "backend/cpu/cpu_kernels.h"

namespace bev::test {

ModelConfig tiny_gpt() {
  ModelConfig model;
  model.family = "gpt2";
  model.num_layers = 4;
  model.hidden_size = 24;
  model.num_attention_heads = 4;
  model.ffn_hidden_size = 40;
  model.vocab_size = 61;
  model.max_position_embeddings = 32;
  model.activation = ActivationKind::kGeluTanh;
  model.init_method_std = 0.2;
  return model;
}

ModelConfig tiny_llama() {
  ModelConfig model;
  model.family = "llama";
  model.num_layers = 4;
  model.hidden_size = 20;
  model.num_attention_heads = 6;
  model.num_query_groups = 2;
  model.kv_channels = 6;
  model.ffn_hidden_size = 28;
  model.vocab_size = 53;
  model.max_position_embeddings = 32;
  model.position_embedding_type = PositionKind::kRope;
  model.normalization = NormKind::kRmsNorm;
  model.activation = ActivationKind::kSilu;
  model.gated = true;
  model.add_bias_linear = false;
  model.untie_embeddings_and_output_weights = true;
  model.init_method_std = 0.2;
  return model;
}

LayoutAnswer run_tiny(const TinyRun& tiny) {
  LayoutRun run;
  run.engine.model = tiny.model;
  run.engine.parallel = tiny.parallel;
  run.engine.parallel.data_parallel_size =
      std::max<std::int64_t>(tiny.parallel.data_parallel_size, 1);
  run.engine.dtype = tiny.dtype;
  run.engine.threads = static_cast<int>(tiny.threads);
  run.steps = tiny.steps;
  run.micro_batch_size = tiny.micro_batch_size;
  std::vector<StepSamples> batches;
  for (std::int64_t step = 0; step < tiny.steps; ++step) {
    batches.push_back(random_samples(tiny.model.vocab_size, tiny.global_batch_size,
                                     tiny.sequence_length, 77 + static_cast<std::uint64_t>(step)));
  }
  return run_layout(run, cpu_kernels(), batches);
}

}  // namespace bev::test
