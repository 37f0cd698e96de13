// Fixtures of encoders, and the layouts that tests give them.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "models/config.h"

namespace bev::test {

inline std::string encoder_folder(const std::string& fixture) {
  return join_path(BEV_SOURCE_DIR "/tests/golden/encoders", fixture);
}
inline std::vector<std::string> encoder_fixtures() {
  return list_directory(BEV_SOURCE_DIR "/tests/golden/encoders");
}

// Whether the sizes of a model allow a layout in the short notation of `verify`.
inline bool fits(const ModelConfig& model, const std::string& layout) {
  const bool splits = model.num_attention_heads % 2 == 0 && model.ffn_size() % 2 == 0;
  const bool whole = model.encoder.labels == LabelKind::kSpans ||
                     model.encoder.label_pooling == LabelPooling::kMean;
  if (layout.find("tp2") != layout.npos && !splits) return false;
  return layout.find("cp2") == layout.npos || !whole;
}

// The layout of a fixture: as many axes as its sizes allow.
inline std::string encoder_layout(const ModelConfig& model) {
  return fits(model, "tp2") ? "tp2sp,pp2,dp2zero3" : "pp2,dp2zero3";
}

}  // namespace bev::test
