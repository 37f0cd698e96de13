// Layer descriptions: everything that can differ between layers of a model is a field of LayerSpec;
// ModelConfig has what all layers share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/build_options.h"
#include "models/config.h"
#include "nn/mixer.h"

namespace bev {

struct LayerSpec;

// Forward FLOPs of a mixer per token, and per visible query-key pair.
struct MixerFlops {
  double per_token = 0, per_pair = 0;
};

// A kind of mixer: a constant that layer descriptions point to. Applications may define their own.
struct MixerType {
  std::string_view name;
  std::string_view module;  // component of its parameter names below the layer
  // `name` is the prefix of its parameter names; `number` is the layer index in the model.
  std::unique_ptr<Mixer> (*make)(const std::string& name, const ModelConfig& config,
                                 const LayerSpec& spec, std::int64_t number,
                                 const BuildOptions& options);
  MixerFlops (*flops)(const ModelConfig& config, const LayerSpec& spec);
  // Name of the FSDP unit of its parameters below the layer, which ZeRO-3 gathers and frees
  // together; "": the unit of the layer.
  std::string_view fsdp_unit = "";
};
extern const MixerType kAttentionMixer;        // multi-head, grouped-query (GQA) or multi-query
extern const MixerType kLatentAttentionMixer;  // multi-head latent attention (MLA)

enum class FeedForwardKind : std::uint8_t { kNone, kDense, kExperts };
std::string_view name_of(FeedForwardKind kind);

struct LayerSpec {
  const MixerType* mixer = &kAttentionMixer;
  FeedForwardKind feed_forward = FeedForwardKind::kDense;
  NormPlacement norms = NormPlacement::kPre;
  bool input_norm = true;          // false: no norm before the mixer, where `norms` has one
  bool parallel_residual = false;  // mixer and feed-forward read the same input
  double residual_multiplier = 1;  // of the outputs of mixer and feed-forward
  AttentionRule attention;
  RopeKind rope = RopeKind::kNone;
  bool scaled_queries = false;  // by the factor of their position
};

// Description of layer `number` of a decoder; layers after the last (MTP) are like the last.
LayerSpec decoder_layer(const ModelConfig& config, std::int64_t number);
// Descriptions of all layers; other architectures may change some.
std::vector<LayerSpec> decoder_layers(const ModelConfig& config);

}  // namespace bev
