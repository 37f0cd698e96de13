#include "train/tensor_files.h"

#include <cstddef>
#include <map>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "bridge/safetensors.h"

namespace bev {

namespace {

// Copies of tensors in host memory.
class HostTensors {
 public:
  void add(const Context& ctx, std::string name, const View& view) {
    std::vector<std::byte>& bytes = data_[name];
    bytes.resize(view.bytes());
    if (!bytes.empty()) ctx.download(view, bytes.data());
    specs_.push_back({std::move(name), view.dtype, view.shape});
  }
  std::size_t size() const { return specs_.size(); }

  void write(const std::string& path) const {
    make_directories(parent_path(path));
    SafetensorsWriter writer(path, specs_);
    for (const TensorSpec& spec : std::vector<TensorSpec>(writer.tensors())) {
      writer.write(spec.name, data_.at(spec.name));
    }
    writer.commit();
  }

 private:
  std::vector<TensorSpec> specs_;
  std::map<std::string, std::vector<std::byte>> data_;
};

std::string padded(std::size_t number, std::size_t digits) {
  std::string text = std::to_string(number);
  return std::string(digits - std::min(digits, text.size()), '0') + text;
}

class Collector final : public TensorSink {
 public:
  explicit Collector(const TensorFilesSpec& spec) : spec_(spec) {}

  void see(const Context& ctx, std::string_view op, bool in_backward, const View& view) override {
    if (!(in_backward ? spec_.dgrads : spec_.activations)) return;
    HostTensors& to = in_backward ? dgrads : activations;
    const std::string layer = ctx.layer >= 0 ? concat("layer.", ctx.layer, ".") : "";
    to.add(ctx, concat(padded(to.size(), 6), ".", layer, op), view);
  }

  HostTensors activations, dgrads;

 private:
  const TensorFilesSpec& spec_;
};

}  // namespace

void save_step_tensors(Engine& engine, std::span<const MicroBatch> batches, const StepInput& input,
                       const TensorFilesSpec& spec) {
  Collector collector(spec);
  engine.show_tensors(batches, input, collector);
  Context& ctx = engine.model().ctx();
  const auto rank = static_cast<std::size_t>(engine.model().mesh().world().rank());
  const auto path = [&](const char* kind) {
    return concat(spec.folder, "/", kind, "/iter_",
                  padded(static_cast<std::size_t>(input.iteration), 7), "/rank_", padded(rank, 5),
                  ".safetensors");
  };
  if (spec.activations) collector.activations.write(path("activations"));
  if (spec.dgrads) collector.dgrads.write(path("dgrads"));
  if (!spec.wgrads) return;
  HostTensors wgrads;
  for (const Param* param : engine.model().store().params()) {
    if (!param->trains) continue;
    wgrads.add(ctx, param->name, engine.model().store().local_gradient(*param).view);
  }
  wgrads.write(path("wgrads"));
}

}  // namespace bev
