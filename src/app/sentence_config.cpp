#include "app/sentence_config.h"

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "models/families/hf_config.h"

namespace bev {

namespace {
constexpr std::array<std::pair<std::string_view, Pooling>, 3> kModes = {
    {{"pooling_mode_cls_token", Pooling::kCls},
     {"pooling_mode_mean_tokens", Pooling::kMean},
     {"pooling_mode_lasttoken", Pooling::kLast}}};
constexpr std::string_view kOtherModes[] = {"pooling_mode_max_tokens",
                                            "pooling_mode_mean_sqrt_len_tokens",
                                            "pooling_mode_weightedmean_tokens"};
}  // namespace

Pooling default_pooling(const std::string& folder, const ModelConfig& model) {
  const std::string path = folder.empty() ? "" : join_path(folder, "1_Pooling/config.json");
  const Pooling usual = model.causal ? Pooling::kLast : Pooling::kCls;
  if (path.empty() || !path_exists(path)) return usual;
  const HfConfig config = HfConfig::parse(read_file(path), path);
  constexpr const char* kCure = "give --pooling cls, mean or last for vectors of another kind";
  for (std::string_view other : kOtherModes) {
    if (config.boolean(other, false)) config.reject(other, kCure);
  }
  std::optional<Pooling> found;
  for (const auto& [key, pooling] : kModes) {
    if (!config.boolean(key, false)) continue;
    if (found) config.reject(key, concat("two kinds of pooling are joined; ", kCure));
    found = pooling;
  }
  return found.value_or(usual);
}

}  // namespace bev
