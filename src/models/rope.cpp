#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace bev {

namespace {

double base_of(const ModelConfig& config, bool local) {
  return local && config.rotary_base_local > 0 ? config.rotary_base_local : config.rotary_base;
}

std::vector<double> plain_frequencies(double base, std::int64_t dims) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < dims / 2; ++i) {
    frequencies.push_back(
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dims)));
  }
  return frequencies;
}

double original_length(const ModelConfig& config) {
  std::int64_t length = config.rope_scaling.original_max_positions;
  return static_cast<double>(length > 0 ? length : config.max_position_embeddings);
}

// Llama 3: long wavelengths are interpolated, short ones kept, with a smooth blend in between.
void scale_llama3(const RopeScaling& scaling, double original, std::vector<double>& frequencies) {
  for (double& f : frequencies) {
    double wavelength = 2 * std::numbers::pi / f;
    if (wavelength < original / scaling.high_freq_factor) continue;
    if (wavelength > original / scaling.low_freq_factor) {
      f /= scaling.factor;
    } else {
      double t = (original / wavelength - scaling.low_freq_factor) /
                 (scaling.high_freq_factor - scaling.low_freq_factor);
      f = (1 - t) * f / scaling.factor + t * f;
    }
  }
}

double yarn_mscale(double factor, double weight) {
  return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

// YaRN (arXiv 2309.00071): a ramp over dims between original and interpolated frequencies.
double scale_yarn(const RopeScaling& scaling, double base, double original, std::int64_t dims,
                  std::vector<double>& frequencies) {
  auto correction = [&](double rotations) {
    return static_cast<double>(dims) * std::log(original / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(base));
  };
  double low = correction(scaling.beta_fast), high = correction(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dims - 1));
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    double t = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] * (1 - t) + frequencies[i] / scaling.factor * t;
  }
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  if (scaling.mscale != 0 && scaling.mscale_all_dim != 0) {
    return yarn_mscale(scaling.factor, scaling.mscale) /
           yarn_mscale(scaling.factor, scaling.mscale_all_dim);
  }
  return yarn_mscale(scaling.factor, 1.0);
}

// LongRoPE (arXiv 2402.13753): one factor per dim, for short or for long sequences.
double scale_longrope(const ModelConfig& config, double original, std::int64_t length,
                      std::vector<double>& frequencies) {
  const RopeScaling& scaling = config.rope_scaling;
  const std::vector<double>& factors =
      static_cast<double>(length) > original ? scaling.long_factor : scaling.short_factor;
  BEV_CHECK(factors.size() == frequencies.size(), ErrorKind::kConfig, "longrope: ", factors.size(),
            " factors for ", frequencies.size(), " frequencies");
  for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= factors[i];
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  double factor = scaling.factor > 1
                      ? scaling.factor
                      : static_cast<double>(config.max_position_embeddings) / original;
  return factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original));
}

}  // namespace

double latent_scale_factor(const RopeScaling& scaling) {
  if (scaling.kind != RopeScalingKind::kYarn || scaling.mscale_all_dim == 0) return 1.0;
  double magnitude = yarn_mscale(scaling.factor, scaling.mscale_all_dim);
  return magnitude * magnitude;
}

std::int64_t rotary_dims(const ModelConfig& config) {
  if (config.multi_latent_attention) return config.qk_pos_emb_head_dim;
  return static_cast<std::int64_t>(static_cast<double>(config.head_size()) * config.rotary_percent);
}

bool rope_depends_on_length(const ModelConfig& config) {
  return config.rope_scaling.kind == RopeScalingKind::kDynamic ||
         config.rope_scaling.kind == RopeScalingKind::kLongRope;
}

bool rope_switches_at(const ModelConfig& config, std::int64_t length) {
  return config.position_embedding_type == PositionKind::kRope &&
         config.rope_scaling.kind == RopeScalingKind::kLongRope &&
         static_cast<double>(length - 1) == original_length(config);
}

RopeFrequencies rope_frequencies(const ModelConfig& config, bool local, std::int64_t length) {
  const RopeScaling& scaling = config.rope_scaling;
  std::int64_t dims = rotary_dims(config);
  double base = base_of(config, local);
  // A separate base of windowed layers is never scaled.
  bool scaled = !(local && config.rotary_base_local > 0);
  if (scaled && scaling.kind == RopeScalingKind::kDynamic) {
    auto positions = static_cast<double>(config.max_position_embeddings);
    double reach = std::max(static_cast<double>(length), positions);
    base *= std::pow(scaling.factor * reach / positions - (scaling.factor - 1),
                     static_cast<double>(dims) / static_cast<double>(dims - 2));
  }
  RopeFrequencies result{plain_frequencies(base, dims), 1.0};
  if (!scaled) return result;
  switch (scaling.kind) {
    case RopeScalingKind::kDefault:
    case RopeScalingKind::kDynamic:
      break;
    case RopeScalingKind::kLinear:
      for (double& f : result.frequencies) f /= scaling.factor;
      break;
    case RopeScalingKind::kLlama3:
      scale_llama3(scaling, original_length(config), result.frequencies);
      break;
    case RopeScalingKind::kYarn:
      result.scale = scale_yarn(scaling, base, original_length(config), dims, result.frequencies);
      break;
    case RopeScalingKind::kLongRope:
      result.scale = scale_longrope(config, original_length(config), length, result.frequencies);
      break;
  }
  return result;
}

}  // namespace bev
