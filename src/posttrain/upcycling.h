// MoE upcycling: initialises a model with experts from a dense model (as in Megatron, arXiv
// 2410.07524). The MLP is split into `granularity` parts of its inner width; expert e gets part e %
// granularity, and the experts that form a whole MLP share a router row, so that tokens choose them
// together.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bridge/weight_export.h"
#include "parallel/engine.h"

namespace bev {

// The dense model that `model` is initialised from.
ModelConfig dense_model(const ModelConfig& model, std::int64_t granularity);

// Reasons why experts of this shape cannot be initialised from the dense MLP.
std::vector<std::string> upcycling_problems(const ModelConfig& model, std::int64_t granularity);

// Resources for drawing initial values.
struct DrawTools {
  const Kernels& kernels;
  Stream stream;
  Arena& arena;
  std::uint64_t seed = 0;
};

// Whole parameters of an MoE model derived from a dense one; parameters that the dense model lacks
// are drawn from the seed. Any number of threads may read.
class UpcycledWeights final : public ParamSource {
 public:
  // `source` provides the parameters `dense`. All arguments must outlive the object.
  UpcycledWeights(const ModelConfig& model, std::int64_t granularity, ParamSource& source,
                  std::span<const ParamMapping> dense, const DrawTools& draws);
  ~UpcycledWeights() override;

  // One parameter, of which any range of elements can be copied.
  class Value {
   public:
    // Copies a range of the flattened parameter.
    void copy(Range elements, std::byte* out) const;

   private:
    friend class UpcycledWeights;
    // The parameter consists of blocks, whose pieces of `inner` elements are taken from a source
    // that interleaves `parts` pieces. Block b takes piece b % parts, starting at row b / repeats
    // of rows of `row` elements.
    struct Cut {
      std::int64_t block = 0, inner = 0, parts = 1, repeats = 1, row = 0;
    };
    Dtype dtype_ = Dtype::kF32;
    std::vector<std::byte> source_;
    Cut cut_;
  };
  Value open(const std::string& param, Dtype dtype) const;
  // True if the parameter is drawn from the seed.
  bool is_drawn(const std::string& param) const;

  Dtype dtype(const ParamMapping& mapping, std::size_t part) const override;
  std::span<const std::byte> stored(const ParamMapping&, std::size_t, Dtype) override { return {}; }
  void read(const ParamMapping& mapping, Range elements, Dtype dtype, void* out) override;

 private:
  // The dense parameter that `param` is derived from; null: none.
  const ParamMapping* source_of(const std::string& param) const;
  Value experts(const Param& param, const ParamMapping& dense, Dtype dtype) const;
  // The first `count` drawn elements of the parameter.
  std::vector<std::byte> drawn(const Param& param, std::int64_t count, Dtype dtype) const;

  const ModelConfig& model_;
  std::int64_t granularity_;
  ParamSource& source_;
  std::span<const ParamMapping> dense_;
  DrawTools draws_;
  std::vector<Param> declared_;
  std::map<std::string, const Param*> params_;
};

// Location of a dense model.
struct DenseSource {
  std::string load = {};  // checkpoint: the folder of a run or of a step
  std::int64_t ckpt_step = -1;
  std::string hf_model = {};  // used if there is no checkpoint
};

// Opens a dense model as the source of an MoE model. Throws Error(kInput) if it does not match,
// Error(kConfig) if it already has experts.
class Upcycling {
 public:
  Upcycling(const ModelConfig& model, std::int64_t granularity, const DenseSource& from,
            const DrawTools& draws);
  ~Upcycling();

  UpcycledWeights& weights() { return *weights_; }
  // Folder of the source weights.
  const std::string& folder() const { return folder_; }

 private:
  struct Opened;
  std::string folder_;
  std::unique_ptr<Opened> opened_;
  std::unique_ptr<UpcycledWeights> weights_;
};

// Initialises the weights of the engine under any layout; drawn parameters stay unchanged. All
// ranks must call it.
void upcycle(Engine& engine, std::int64_t granularity, const DenseSource& from);

}  // namespace bev
