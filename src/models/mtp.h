// Multi-token prediction (MTP; DeepSeek-V3, arXiv 2412.19437): after the last layer, module d
// combines the hidden states of the module before with the embedding of the token d + 1 ahead, and
// predicts the one after that with the shared head.
#pragma once

#include <cstdint>
#include <vector>

#include "models/layer.h"

namespace bev {

class MtpLayer {
 public:
  MtpLayer(const ModelConfig& config, std::int64_t depth, const BuildOptions& options);

  void params(std::vector<Param*>& list);
  // hidden and embedded [T, H] -> [T, H], all outside the tensor-parallel region; the result is
  // normalised, as `hidden` is.
  Var forward(Context& ctx, const Var& hidden, const Var& embedded, const LayerInput& input) const;

 private:
  Norm embedding_norm_, hidden_norm_;
  Linear projection_;  // [H, 2H]: embedding | hidden
  DecoderLayer layer_;
  Norm final_norm_;
  bool recompute_;
  bool fp32_residual_;
};

}  // namespace bev
