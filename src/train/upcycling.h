// A model with experts out of a dense model (Megatron's upcycling, arXiv 2410.07524).
// The MLP is cut into `granularity` parts of its inner width; expert e gets part e % granularity,
// and the experts of a whole MLP share a row of the router, so that tokens choose them together.
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

// The model whose weights `model` is made of.
ModelConfig dense_model(const ModelConfig& model, std::int64_t granularity);

// Why experts of that shape cannot be made of a dense MLP.
std::vector<std::string> upcycling_problems(const ModelConfig& model, std::int64_t granularity);

// What initial values are drawn with.
struct DrawTools {
  const Kernels& kernels;
  Stream stream;
  Arena& arena;
  std::uint64_t seed = 0;
};

// The whole parameters of a model with experts, made of those of a dense one; what that does not
// have has the values that the seed draws. Any number of threads may read.
class UpcycledWeights final : public ParamSource {
 public:
  // `source` has the parameters `dense`. All must outlive it.
  UpcycledWeights(const ModelConfig& model, std::int64_t granularity, ParamSource& source,
                  std::span<const ParamMapping> dense, const DrawTools& draws);
  ~UpcycledWeights() override;

  // A parameter, of which any elements can be copied.
  class Value {
   public:
    // Elements of the flattened parameter.
    void copy(Range elements, std::byte* out) const;

   private:
    friend class UpcycledWeights;
    // Where the parameter is blocks whose pieces of `inner` elements are cut out of a source that
    // has `parts` of them for each. Block b takes number b % parts, and from where row b / repeats
    // of rows of `row` elements begins.
    struct Cut {
      std::int64_t block = 0, inner = 0, parts = 1, repeats = 1, row = 0;
    };
    Dtype dtype_ = Dtype::kF32;
    std::vector<std::byte> source_;
    Cut cut_;
  };
  Value open(const std::string& param, Dtype dtype) const;
  // Whether it is as the seed draws it.
  bool is_drawn(const std::string& param) const;

  Dtype dtype(const ParamMapping& mapping, std::size_t part) const override;
  std::span<const std::byte> stored(const ParamMapping&, std::size_t, Dtype) override { return {}; }
  void read(const ParamMapping& mapping, Range elements, Dtype dtype, void* out) override;

 private:
  // The dense parameter that it is made of; null: none.
  const ParamMapping* source_of(const std::string& param) const;
  Value experts(const Param& param, const ParamMapping& dense, Dtype dtype) const;
  // `count` elements of the parameter from the first on.
  std::vector<std::byte> drawn(const Param& param, std::int64_t count, Dtype dtype) const;

  const ModelConfig& model_;
  std::int64_t granularity_;
  ParamSource& source_;
  std::span<const ParamMapping> dense_;
  DrawTools draws_;
  std::vector<Param> declared_;
  std::map<std::string, const Param*> params_;
};

// Where a dense model is.
struct DenseSource {
  std::string load = {};  // a checkpoint: the folder of a run or of a step
  std::int64_t ckpt_step = -1;
  std::string hf_model = {};  // where there is none
};

// Opens a dense model as the source of a model with experts. Error(kInput) when it does not fit,
// Error(kConfig) when it has experts already.
class Upcycling {
 public:
  Upcycling(const ModelConfig& model, std::int64_t granularity, const DenseSource& from,
            const DrawTools& draws);
  ~Upcycling();

  UpcycledWeights& weights() { return *weights_; }
  // The folder that the weights come from.
  const std::string& folder() const { return folder_; }

 private:
  struct Opened;
  std::string folder_;
  std::unique_ptr<Opened> opened_;
  std::unique_ptr<UpcycledWeights> weights_;
};

// Fills the engine's weights, in whatever layout; what is drawn stays as it is. All ranks call it.
void upcycle(Engine& engine, std::int64_t granularity, const DenseSource& from);

}  // namespace bev
