#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "bridge/safetensors.h"
#include "checkpoint/convert/conversion.h"
#include "checkpoint/owned_state.h"
#include "checkpoint/step_folders.h"

namespace bev {

namespace {

std::string shard_name(std::size_t index) { return fmt::format("shard_{:05}.safetensors", index); }

class OwnFormat final : public PartFormat {
 public:
  std::string begin(const PlannedFile& file) const override {
    std::vector<TensorSpec> specs;
    for (const OutputPart& part : file.parts) {
      specs.push_back({piece_name(part.name, part.box), part.dtype, part.box.shape()});
    }
    return safetensors_header(specs);
  }
};

}  // namespace

std::string weight_source(const Conversion& job, const std::string& param, Dtype dtype) {
  std::string main = main_name(param);
  const auto& tensors = job.source.tensors();
  bool rounded = tensors.at(param).dtype != dtype && tensors.contains(main);
  return rounded ? main : param;
}

std::string write_own(const Conversion& job) {
  Manifest manifest = job.about;
  manifest.program_version = BEV_VERSION;
  manifest.tensors.clear();
  manifest.shards.clear();
  std::vector<OutputPart> parts;
  for (const auto& [name, tensor] : job.source.tensors()) {
    Dtype dtype =
        is_weight(name) && is_float(tensor.dtype) ? job.dtype.value_or(tensor.dtype) : tensor.dtype;
    std::string from = is_weight(name) ? weight_source(job, name, dtype) : name;
    manifest.tensors[name] = {dtype, tensor.shape};
    for (const Box& box : boxes_within(tensor.shape, size_of(dtype), job.sizes.part_bytes)) {
      parts.push_back({name, box, dtype, {{from, box}}});
    }
  }
  // Larger elements first, so that every piece is aligned in its file.
  std::ranges::stable_sort(parts, std::greater{},
                           [](const OutputPart& part) { return size_of(part.dtype); });
  std::vector<PlannedFile> files = files_of_parts(std::move(parts), job.sizes, shard_name);
  std::string name = step_folder("", manifest.state.iteration);
  name = name.substr(name.rfind('/') + 1);
  ResumableFolder folder(job.storage, job.out, name,
                         concat("own\n", job.source.identity(), "\n", plan_text(files)));
  std::vector<WrittenFile> written =
      write_part_files(files, job.source, OwnFormat(), folder, job.threads);
  for (std::size_t i = 0; i < files.size(); ++i) {
    ShardEntry entry{files[i].name, written[i].bytes, std::move(written[i].checksums), {}};
    for (const OutputPart& part : files[i].parts) {
      entry.pieces.push_back(piece_name(part.name, part.box));
    }
    manifest.shards.push_back(std::move(entry));
  }
  std::string path = join_path(folder.path(), kManifestName), text = manifest_json(manifest);
  parse_manifest(text, path);  // never write a manifest that does not parse
  replace_file(job.storage, path, text);
  return folder.publish(concat(manifest.state.iteration));
}

}  // namespace bev
