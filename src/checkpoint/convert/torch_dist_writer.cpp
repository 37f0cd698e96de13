#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/convert/conversion.h"
#include "checkpoint/megatron/distributed_files.h"
#include "checkpoint/megatron/written_tensors.h"
#include "checkpoint/owned_state.h"
#include "checkpoint/step_folders.h"
#include "models/model.h"

namespace bev {

namespace {

std::string data_name(std::size_t index) { return fmt::format("__0_{}.distcp", index + 1); }
constexpr const char* kObjectFile = "__0_0.distcp";

class ArchiveFormat final : public PartFormat {
 public:
  ArchiveFrame frame(const OutputPart& part, std::span<const std::byte> elements) const override {
    const Shape shape = part.box.shape();
    return tensor_archive(part.dtype, {shape.dims().begin(), shape.dims().end()}, elements);
  }
};

// A state of every parameter: Megatron's prefix, and ours.
struct WrittenKind {
  std::string_view theirs, ours;
};
constexpr auto kMoments = std::to_array<WrittenKind>({
    {"optimizer.state.exp_avg.", "optimizer.exp_avg/"},
    {"optimizer.state.exp_avg_sq.", "optimizer.exp_avg_sq/"},
});
constexpr std::string_view kMainPrefix = "optimizer.state.param.";

// What is written, before it is divided into files.
struct Plan {
  bool optimizer = false;
  Dtype weights = Dtype::kF32;
  std::vector<OutputPart> parts;
  std::map<std::string, WrittenTensor> tensors;
  std::vector<std::string> extra_states;
};

class Planner {
 public:
  Planner(const Conversion& job, const MegatronRun& run)
      : job_(job), names_(job.model, run.transformer_engine) {}

  Plan plan(std::vector<std::string>& left_out) {
    std::vector<Param> params = declare_params(job_.model);
    std::set<std::string> used;
    check_whole(params);
    plan_.optimizer = has_moments(params);
    const auto& tensors = job_.source.tensors();
    plan_.weights = job_.dtype.value_or(tensors.at(params.front().name).dtype);
    BEV_CHECK(plan_.weights != Dtype::kF64, ErrorKind::kConfig,
              "--ckpt-format torch_dist: Megatron does not train in f64; give --dtype f32");
    std::vector<std::string> names;
    for (const Param& param : params) {
      const GlobalTensor& stored = tensors.at(param.name);
      Dtype dtype = job_.dtype.value_or(stored.dtype);
      add(param, "", weight_source(job_, param.name, dtype), dtype);
      used.insert({param.name, main_name(param.name)});
      names.push_back(param.name);
    }
    for (const Param& param : params) {
      if (!plan_.optimizer) break;
      std::string main = main_name(param.name);
      add(param, kMainPrefix, tensors.contains(main) ? main : param.name, Dtype::kF32);
      for (const WrittenKind& kind : kMoments) {
        std::string ours = concat(kind.ours, param.name);
        add(param, kind.theirs, ours, Dtype::kF32);
        used.insert(ours);
      }
    }
    for (const auto& [name, tensor] : tensors) {
      if (!used.contains(name)) left_out.push_back(name);
    }
    plan_.extra_states = names_.extra_states(names);
    return std::move(plan_);
  }

 private:
  void check_whole(const std::vector<Param>& params) const {
    for (const Param& param : params) {
      auto found = job_.source.tensors().find(param.name);
      bool there = found != job_.source.tensors().end() && found->second.shape == param.shape;
      BEV_CHECK(there, ErrorKind::kInput, "--ckpt-format torch_dist: ", param.name, " ",
                param.shape, " of the model is not in what is read",
                found == job_.source.tensors().end() ? "" : " with this shape");
    }
  }

  // Only a state of all parameters can be loaded.
  bool has_moments(const std::vector<Param>& params) const {
    return std::ranges::all_of(params, [&](const Param& param) {
      return std::ranges::all_of(kMoments, [&](const WrittenKind& kind) {
        return job_.source.tensors().contains(concat(kind.ours, param.name));
      });
    });
  }

  void add(const Param& param, std::string_view prefix, const std::string& from, Dtype dtype) {
    WrittenPlace place = names_.place(param.name);
    std::vector<std::int64_t> dims = place.dims;
    dims.insert(dims.end(), param.shape.dims().begin(), param.shape.dims().end());
    plan_.tensors[concat(prefix, place.name)] = {dtype, Shape(dims)};
    add_written_parts(job_.model, place, std::string(prefix), param.name,
                      {from, whole_box(param.shape)}, dtype, job_.sizes.part_bytes, plan_.parts);
  }

  const Conversion& job_;
  WrittenNames names_;
  Plan plan_;
};

// Modules of Transformer Engine and of Megatron ask for a state that is empty without FP8. All of
// them are one stored object.
std::vector<WrittenObject> write_extra_states(const std::vector<std::string>& keys,
                                              Storage& storage, const std::string& folder) {
  PickleWriter pickle;
  pickle.begin_list();
  pickle.none();
  pickle.end_list();
  std::string archive = object_archive("archive", pickle.take());
  replace_file(storage, join_path(folder, kObjectFile), archive);
  std::vector<WrittenObject> objects;
  for (const std::string& key : keys) objects.push_back({key, kObjectFile, 0, archive.size()});
  return objects;
}

constexpr const char* kBackends =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", )"
    R"("common_backend_version": 1})";

}  // namespace

std::string write_torch_dist(const Conversion& job, const MegatronRun& run,
                             std::vector<std::string>& left_out) {
  Plan plan = Planner(job, run).plan(left_out);
  std::string common =
      megatron_common_file(job.model, job.about, run, plan.weights, plan.optimizer);
  std::vector<PlannedFile> files = files_of_parts(std::move(plan.parts), job.sizes, data_name);
  std::string name = "release";
  if (plan.optimizer) {
    name = step_folder("", job.about.state.iteration);
    name = name.substr(name.rfind('/') + 1);
  }
  ResumableFolder folder(
      job.storage, job.out, name,
      concat("torch_dist\n", job.source.identity(), "\n", common, plan_text(files)));
  std::vector<WrittenFile> written =
      write_part_files(files, job.source, ArchiveFormat(), folder, job.threads);
  std::vector<WrittenObject> objects =
      write_extra_states(plan.extra_states, job.storage, folder.path());
  replace_file(job.storage, join_path(folder.path(), "common.pt"), common);
  replace_file(job.storage, join_path(folder.path(), "metadata.json"), kBackends);
  replace_file(job.storage, join_path(folder.path(), kDistributedMetadata),
               distributed_metadata(plan.tensors, files, written, objects));
  return folder.publish(plan.optimizer ? concat(job.about.state.iteration) : name);
}

}  // namespace bev
