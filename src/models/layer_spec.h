// Descriptions of layers: what distinguishes one layer of a model from another. Everything that
// differs per layer is a field here; ModelConfig has what all layers share.
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

// Forward FLOPs of a mixer: of each token, and of each pair of a query and a key that it sees.
struct MixerFlops {
  double per_token = 0, per_pair = 0;
};

// A kind of mixer: a constant that layer descriptions point to. Programs may have their own.
struct MixerType {
  std::string_view name;
  std::string_view module;  // in its parameters' names, below the layer's
  // `name` is the first part of its parameters' names; `number` is the layer's in the model.
  std::unique_ptr<Mixer> (*make)(const std::string& name, const ModelConfig& config,
                                 const LayerSpec& spec, std::int64_t number,
                                 const BuildOptions& options);
  MixerFlops (*flops)(const ModelConfig& config, const LayerSpec& spec);
  // Name of the FSDP unit of its parameters below the layer's, which ZeRO-3 gathers and frees
  // together; "": the layer's own.
  std::string_view fsdp_unit = "";
};
extern const MixerType kAttentionMixer;        // multi-head, grouped-query (GQA) or multi-query
extern const MixerType kLatentAttentionMixer;  // multi-head latent attention (MLA)

enum class FeedForwardKind : std::uint8_t { kNone, kDense, kExperts };
std::string_view name_of(FeedForwardKind kind);

// Where a layer has norms: before mixer and feed-forward, or also after each (Gemma).
enum class NormPlacement : std::uint8_t { kPre, kPreAndPost };

struct LayerSpec {
  const MixerType* mixer = &kAttentionMixer;
  FeedForwardKind feed_forward = FeedForwardKind::kDense;
  NormPlacement norms = NormPlacement::kPre;
  bool parallel_residual = false;  // mixer and feed-forward read the same input
  AttentionRule attention;
  RopeKind rope = RopeKind::kNone;
};

// A decoder's layer `number` as its configuration says; layers behind the last (of multi-token
// prediction) are like it.
LayerSpec decoder_layer(const ModelConfig& config, std::int64_t number);
// All of them; other architectures may change some.
std::vector<LayerSpec> decoder_layers(const ModelConfig& config);

}  // namespace bev
