// OLMo 2: Llama with norms after attention and MLP, and q and k normalised over their whole width.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/olmo_like.h"

namespace bev {

namespace {
ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_olmo(hf, "olmo2");
  read_rope(hf, {}, config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_olmo(config, hf);
  write_rope(config, {}, hf);
}

ModelConfig sized(const ModelSizes& sizes) { return olmo_sized("olmo2", sizes); }
}  // namespace

ModelFamily olmo2_family() {
  return {.name = "olmo2",
          .architecture = "Olmo2ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = post_norm_weights(),
          .ignored = llama_ignored(),
          .default_pad = 1,
          .presets = {{"olmo2-1b", sized({16, 2048, 8192, 16, 16, 100352, 4096})},
                      {"olmo2-7b", sized({32, 4096, 11008, 32, 32, 100352, 4096})},
                      {"olmo2-13b", sized({40, 5120, 13824, 40, 40, 100352, 4096})},
                      {"olmo2-32b", sized({64, 5120, 27648, 40, 8, 100352, 4096})}}};
}

}  // namespace bev
