// checkpoint verify, inspect and diff: commands that examine checkpoints.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "app/options.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/output.h"
#include "base/thread_pool.h"
#include "checkpoint/config_copy.h"
#include "checkpoint/step_folders.h"
#include "checkpoint/tensor_stats.h"

namespace bev {

namespace {

// Flags of checkpoint verify, inspect and diff.
struct CheckpointOptions {
  std::vector<std::string> folders;
  std::int64_t ckpt_step = -1;  // -1: the folder's latest
  bool json = false;

  void fields(FieldList& list);
  // `count`: the number of folders that the command needs.
  std::vector<std::string> problems(std::size_t count) const;
};

void CheckpointOptions::fields(FieldList& list) {
  list.section("checkpoint");
  list.add("folders", folders,
           "folders of runs, which mean their latest step, or of steps; may be given without the "
           "flag");
  list.add("ckpt-step", ckpt_step, "the step of a run's folder; -1: the latest").min(-1);
  list.add("json", json, "print JSON");
}

std::vector<std::string> CheckpointOptions::problems(std::size_t count) const {
  if (folders.size() == count) return {};
  return {concat("--folders: ", folders.size(), " given; give ",
                 count == 1 ? "the folder of a checkpoint" : "two folders of checkpoints")};
}

using Json = nlohmann::ordered_json;

void check_options(const CheckpointOptions& wanted, Options& options, std::size_t folders) {
  options.add_problems(wanted.problems(folders));
  options.throw_problems();
}

// The step folders to process: all steps of a run's folder, unless one is named.
std::vector<std::string> step_folders(const CheckpointOptions& wanted) {
  const std::string& folder = wanted.folders[0];
  std::vector<std::string> found;
  if (wanted.ckpt_step < 0 && !holds_step(folder)) {
    for (std::int64_t step : complete_steps(folder)) found.push_back(step_folder(folder, step));
  }
  if (found.empty()) found.push_back(find_step_folder(folder, wanted.ckpt_step));
  return found;
}

std::int64_t stored_bytes(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const ShardEntry& shard : manifest.shards) bytes += shard.bytes;
  return static_cast<std::int64_t>(bytes);
}

// The result for a step folder. If its manifest cannot be read, that is its only problem.
struct StepCheck {
  std::string folder;
  Manifest manifest;
  std::vector<std::string> problems;
};

StepCheck check_step(const std::string& folder) {
  StepCheck check{folder, {}, {}};
  try {
    CheckpointReader reader(folder);
    check.problems = reader.verify();
    check.manifest = reader.manifest();
  } catch (const Error& error) {
    check.problems.push_back(error.what());
  }
  return check;
}

std::string verify_text(const StepCheck& check) {
  if (check.problems.empty()) {
    return fmt::format("{}: {} tensors, {} shards, {} bytes: all is well\n", check.folder,
                       check.manifest.tensors.size(), check.manifest.shards.size(),
                       stored_bytes(check.manifest));
  }
  std::string out = fmt::format("{}: damaged\n", check.folder);
  for (const std::string& problem : check.problems) out += concat("  ", problem, "\n");
  return out;
}

Json verify_json(const StepCheck& check) {
  return {{"folder", check.folder},
          {"tensors", check.manifest.tensors.size()},
          {"shards", check.manifest.shards.size()},
          {"bytes", stored_bytes(check.manifest)},
          {"problems", check.problems}};
}

Json state_json(TrainingState state) {
  FieldList list;
  state.fields(list);
  Json out = Json::object();
  for (const auto& entry : list.entries()) {
    const Field& field = entry->field;
    out[field.name()] = field.is_number() ? Json::parse(field.text()) : Json(field.text());
  }
  return out;
}

Json stats_json(const TensorStats& stats, const GlobalTensor& tensor) {
  Json out{{"name", stats.name}, {"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape.dims()}};
  if (!stats.problem.empty()) {
    out["problem"] = stats.problem;
    return out;
  }
  out["min"] = stats.min ? Json(*stats.min) : Json();
  out["max"] = stats.max ? Json(*stats.max) : Json();
  out["norm"] = stats.norm;
  out["zeros"] = stats.zeros;
  out["nans"] = stats.nans;
  out["infinities"] = stats.infinities;
  return out;
}

std::string number_text(const std::optional<double>& value) {
  return value ? fmt::format("{:.5g}", *value) : "-";
}

std::string stats_text(const std::vector<TensorStats>& all, const Manifest& manifest) {
  std::size_t width = 6;
  for (const TensorStats& stats : all) width = std::max(width, stats.name.size());
  std::string out = fmt::format("{:<{}} {:<5} {:<18} {:>12} {:>12} {:>12} {:>8} {:>8}\n", "tensor",
                                width, "dtype", "shape", "min", "max", "norm", "NaN", "Inf");
  for (const TensorStats& stats : all) {
    const GlobalTensor& tensor = manifest.tensors.at(stats.name);
    out += fmt::format("{:<{}} {:<5} {:<18} ", stats.name, width, name_of(tensor.dtype),
                       to_text(tensor.shape));
    out += stats.problem.empty()
               ? fmt::format("{:>12} {:>12} {:>12} {:>8} {:>8}\n", number_text(stats.min),
                             number_text(stats.max), number_text(stats.norm), stats.nans,
                             stats.infinities)
               : concat(stats.problem, "\n");
  }
  return out;
}

// Who wrote the checkpoint, and what of another program's is not taken.
std::string origin_text(const CheckpointReader& reader) {
  const ForeignNotes* foreign = reader.foreign();
  if (foreign == nullptr) return concat("bevatron ", reader.manifest().program_version);
  return concat(foreign->format, foreign->layout.empty() ? "" : ", ", foreign->layout);
}
std::string notes_text(const CheckpointReader& reader) {
  const ForeignNotes* foreign = reader.foreign();
  if (foreign == nullptr) return "";
  std::string out;
  if (!foreign->unreadable.empty()) out += concat("  no model: ", foreign->unreadable, "\n");
  for (const std::string& what : foreign->ignored) out += concat("  ignored: ", what, "\n");
  return out;
}

std::string inspect_text(const CheckpointReader& reader, const std::vector<TensorStats>& all) {
  const Manifest& manifest = reader.manifest();
  const TrainingState& state = manifest.state;
  return fmt::format(
             "{}\n  iteration {}, {} samples, {} tokens, {} iterations skipped, seed {}\n"
             "  written by {}: {} tensors in {} shards, {} bytes\n{}\n",
             reader.folder(), state.iteration, state.consumed_samples, state.consumed_tokens,
             state.skipped, state.seed, origin_text(reader), manifest.tensors.size(),
             manifest.shards.size(), stored_bytes(manifest), notes_text(reader)) +
         stats_text(all, manifest);
}

Json inspect_json(const CheckpointReader& reader, const std::vector<TensorStats>& all) {
  const Manifest& manifest = reader.manifest();
  Json out{{"folder", reader.folder()},       {"program_version", manifest.program_version},
           {"bytes", stored_bytes(manifest)}, {"state", state_json(manifest.state)},
           {"config", Json::object()},        {"tensors", Json::array()}};
  if (const ForeignNotes* foreign = reader.foreign()) {
    out["format"] = foreign->format;
    out["layout"] = foreign->layout;
    out["ignored"] = foreign->ignored;
    if (!foreign->unreadable.empty()) out["no_model"] = foreign->unreadable;
  }
  for (const ConfigEntry& entry : manifest.config) {
    out["config"][entry.section][entry.name] = entry.value;
  }
  for (const TensorStats& stats : all) {
    out["tensors"].push_back(stats_json(stats, manifest.tensors.at(stats.name)));
  }
  return out;
}

std::vector<ValueDifference> state_differences(TrainingState first, TrainingState second) {
  FieldList left, right;
  first.fields(left);
  second.fields(right);
  std::vector<ValueDifference> out;
  for (const auto& entry : left.entries()) {
    const std::string& name = entry->field.name();
    std::string a = entry->field.text(), b = right.find(name)->text();
    if (a != b) out.push_back({name, a, b});
  }
  return out;
}

struct CheckpointDifference {
  std::vector<ValueDifference> state, config;
  std::vector<TensorDifference> tensors;

  bool none() const { return state.empty() && config.empty() && tensors.empty(); }
};

std::string diff_text(const CheckpointDifference& difference) {
  if (difference.none()) return "the two are equal\n";
  std::string out;
  for (const auto* values : {&difference.state, &difference.config}) {
    std::string table = difference_table(*values, "first", "second");
    if (!table.empty()) out += table + "\n";
  }
  if (difference.tensors.empty()) return out;
  out += fmt::format("  {:>12} {:>12} {:>12}  {}\n", "elements", "largest", "of the norm",
                     "differing tensor");
  for (const TensorDifference& tensor : difference.tensors) {
    out += tensor.problem.empty()
               ? fmt::format("  {:>12} {:>12.5g} {:>12.5g}  {}\n", tensor.differing,
                             tensor.max_difference, tensor.relative_norm, tensor.name)
               : fmt::format("  {}: {}\n", tensor.name, tensor.problem);
  }
  return out;
}

Json values_json(const std::vector<ValueDifference>& values) {
  Json out = Json::object();
  for (const ValueDifference& value : values) out[value.name] = {value.first, value.second};
  return out;
}

Json diff_json(const CheckpointDifference& difference) {
  Json tensors = Json::array();
  for (const TensorDifference& tensor : difference.tensors) {
    Json entry{{"name", tensor.name}};
    if (tensor.problem.empty()) {
      entry["differing"] = tensor.differing;
      entry["max_difference"] = tensor.max_difference;
      entry["relative_norm"] = tensor.relative_norm;
    } else {
      entry["problem"] = tensor.problem;
    }
    tensors.push_back(std::move(entry));
  }
  return {{"state", values_json(difference.state)},
          {"config", values_json(difference.config)},
          {"tensors", std::move(tensors)}};
}

int run_checkpoint_verify(CheckpointOptions& wanted, const CommandInput& input) {
  check_options(wanted, input.options, 1);
  bool good = true;
  for (const std::string& folder : step_folders(wanted)) {
    StepCheck check = check_step(folder);
    good = good && check.problems.empty();
    write_stdout(wanted.json ? verify_json(check).dump() + "\n" : verify_text(check));
  }
  return good ? kExitOk : kExitMismatch;
}

int run_checkpoint_inspect(CheckpointOptions& wanted, const CommandInput& input) {
  check_options(wanted, input.options, 1);
  CheckpointReader reader(find_step_folder(wanted.folders[0], wanted.ckpt_step));
  ThreadPool pool(machine_threads());
  std::vector<TensorStats> all = tensor_stats(reader, pool);
  write_stdout(wanted.json ? inspect_json(reader, all).dump(1) + "\n" : inspect_text(reader, all));
  bool good = std::ranges::all_of(all, [](const TensorStats& one) { return one.problem.empty(); });
  return good ? kExitOk : kExitMismatch;
}

int run_checkpoint_diff(CheckpointOptions& wanted, const CommandInput& input) {
  check_options(wanted, input.options, 2);
  CheckpointReader first(find_step_folder(wanted.folders[0], wanted.ckpt_step));
  CheckpointReader second(find_step_folder(wanted.folders[1], wanted.ckpt_step));
  ThreadPool pool(machine_threads());
  CheckpointDifference difference{
      state_differences(first.manifest().state, second.manifest().state),
      config_differences(first.manifest().config, second.manifest().config),
      tensor_differences(first, second, pool)};
  write_stdout(wanted.json ? diff_json(difference).dump(1) + "\n" : diff_text(difference));
  return difference.none() ? kExitOk : kExitMismatch;
}

}  // namespace

const Command kCheckpointVerifyCommand = {
    .name = "checkpoint verify",
    .summary = "check every byte of a checkpoint, or of all steps of a run",
    .examples = "bevatron checkpoint verify DIR",
    .call = call_of<CheckpointOptions, run_checkpoint_verify>,
    .words = "folders"};

const Command kCheckpointInspectCommand = {
    .name = "checkpoint inspect",
    .summary = "where a checkpoint stands, and smallest, largest, norm and NaNs of its tensors",
    .examples =
        "bevatron checkpoint inspect DIR --ckpt-step 1000\n"
        "bevatron checkpoint inspect DIR/iter_0001000 --json",
    .call = call_of<CheckpointOptions, run_checkpoint_inspect>,
    .words = "folders"};

const Command kCheckpointDiffCommand = {
    .name = "checkpoint diff",
    .summary = "what differs between two checkpoints: configuration, position, tensors",
    .examples =
        "bevatron checkpoint diff RUN_A RUN_B --ckpt-step 1000\n"
        "bevatron checkpoint diff DIR/iter_0001000 DIR/iter_0002000",
    .call = call_of<CheckpointOptions, run_checkpoint_diff>,
    .words = "folders"};

}  // namespace bev
