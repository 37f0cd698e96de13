#include "checkpoint/step_folders.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"
#include "checkpoint/manifest.h"
#include "checkpoint/megatron/megatron_folder.h"

namespace bev {

namespace {
constexpr std::string_view kSaving = ".saving-";
constexpr std::string_view kRemoving = ".removing";
// What Megatron's tracker names for weights without an iteration.
constexpr const char* kRelease = "release";

std::optional<std::int64_t> parse_count(std::string_view text) {
  std::int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value >= 0 ? std::optional(value) : std::nullopt;
}
}  // namespace

std::optional<std::int64_t> parse_step(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  return parse_count(name.substr(std::string_view(kStepPrefix).size()));
}

std::string step_folder(const std::string& folder, std::int64_t iteration) {
  return join_path(folder, fmt::format("{}{:07}", kStepPrefix, iteration));
}

std::string saving_folder(const std::string& folder, std::int64_t iteration,
                          const std::string& run) {
  return concat(step_folder(folder, iteration), kSaving, run);
}

std::string name_run(Group& world) {
  std::int64_t run = world.rank() == 0 ? std::random_device()() : 0;
  world.broadcast({&run, Dtype::kI64, {1}}, 0, "name of a run").wait();
  return fmt::format("{:08x}", run);
}

std::vector<std::int64_t> complete_steps(const std::string& folder) {
  std::vector<std::int64_t> steps;
  if (!is_directory(folder)) return steps;
  for (const std::string& name : list_directory(folder)) {
    std::optional<std::int64_t> step = parse_step(name);
    bool ours = step && step_folder(folder, *step) == join_path(folder, name);
    if (ours && path_exists(join_path(join_path(folder, name), kManifestName))) {
      steps.push_back(*step);
    }
  }
  std::ranges::sort(steps);
  return steps;
}

std::optional<std::int64_t> latest_step(const std::string& folder) {
  std::string tracker = join_path(folder, kTrackerName);
  if (path_exists(tracker)) {
    std::string text = read_file(tracker);
    std::optional<std::int64_t> step = parse_count(trim(text));
    BEV_CHECK(trim(text) != kRelease, ErrorKind::kInput, tracker,
              ": names a release, which is no step of a run; `bevatron convert --load ",
              join_path(folder, kRelease), " --save DIR` makes a run of it");
    BEV_CHECK(step, ErrorKind::kInput, tracker, ": ", quote(text),
              " is no iteration; name one by --ckpt-step, or remove the file to take the last");
    return step;
  }
  std::vector<std::int64_t> steps = complete_steps(folder);
  return steps.empty() ? std::nullopt : std::optional(steps.back());
}

bool holds_step(const std::string& folder) {
  return path_exists(join_path(folder, kManifestName)) || is_megatron_folder(folder);
}

std::string find_step_folder(const std::string& folder, std::int64_t iteration) {
  BEV_CHECK(is_directory(folder), ErrorKind::kInput, folder, ": no such folder");
  if (iteration < 0 && holds_step(folder)) return folder;
  std::string tracker = join_path(folder, kTrackerName), release = join_path(folder, kRelease);
  bool released = path_exists(tracker) && trim(read_file(tracker)) == kRelease;
  if (iteration < 0 && released && holds_step(release)) return release;
  std::optional<std::int64_t> step = iteration < 0 ? latest_step(folder) : std::optional(iteration);
  BEV_CHECK(step, ErrorKind::kInput, folder, ": holds no checkpoint, neither ", kManifestName,
            " nor folders ", kStepPrefix, "NNNNNNN with one");
  std::string found = step_folder(folder, *step);
  if (holds_step(found)) return found;
  std::vector<std::string> steps;
  for (std::int64_t other : complete_steps(folder)) steps.push_back(std::to_string(other));
  BEV_FAIL(ErrorKind::kInput, folder, ": has no complete iteration ", *step, "; there are ",
           steps.empty() ? "none" : join(steps, ", "));
}

void publish_step(Storage& storage, const std::string& folder, std::int64_t iteration,
                  const std::string& run) {
  std::string from = saving_folder(folder, iteration, run), to = step_folder(folder, iteration);
  storage.sync_folder(from);
  if (path_exists(to)) {
    storage.exchange(from, to);
    storage.sync_folder(folder);
    storage.remove_tree(from);
  } else {
    storage.rename(from, to);
    storage.sync_folder(folder);
  }
  replace_file(storage, join_path(folder, kTrackerName), concat(iteration, "\n"));
}

void remove_unfinished(Storage& storage, const std::string& folder) {
  if (!is_directory(folder)) return;
  for (const std::string& name : list_directory(folder)) {
    bool unfinished =
        name.find(kSaving) != std::string::npos || name.find(kRemoving) != std::string::npos;
    if (name.starts_with(kStepPrefix) && unfinished) storage.remove_tree(join_path(folder, name));
  }
}

std::vector<std::int64_t> steps_to_remove(std::vector<std::int64_t> steps, std::int64_t saved,
                                          const Retention& retention,
                                          std::span<const std::int64_t> best_steps) {
  if (retention.interval == 0 && retention.most_recent == 0 && retention.best == 0) return {};
  std::erase_if(steps, [&](std::int64_t step) { return step >= saved; });
  std::int64_t recent = std::max<std::int64_t>(retention.most_recent - 1, 0);
  auto older = std::max<std::int64_t>(static_cast<std::int64_t>(steps.size()) - recent, 0);
  steps.resize(static_cast<std::size_t>(older));
  std::erase_if(steps, [&](std::int64_t step) {
    bool regular = retention.interval > 0 && step % retention.interval == 0;
    return regular || std::ranges::find(best_steps, step) != best_steps.end();
  });
  return steps;
}

void remove_step(Storage& storage, const std::string& folder, std::int64_t iteration) {
  // Renamed first: an interrupted removal leaves nothing that looks complete.
  std::string path = step_folder(folder, iteration), aside = concat(path, kRemoving);
  storage.rename(path, aside);
  storage.remove_tree(aside);
}

}  // namespace bev
