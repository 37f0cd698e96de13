#include "app/run_folder.h"

#include <algorithm>
#include <filesystem>

#include "app/export_files.h"
#include "app/options.h"
#include "app/recorded_run.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/step_folders.h"
#include "data/indexed/indexed_dataset.h"
#include "train/run_reports.h"
#include "train/text_data.h"

namespace bev {

namespace fs = std::filesystem;

namespace {

constexpr char kLossCurveName[] = "loss.svg";
constexpr char kCacheName[] = "cache", kPassingName[] = "non_persistent";

bool same_folder(const std::string& one, const std::string& other) {
  std::error_code ignored;
  return one == other || fs::equivalent(one, other, ignored);
}

// The last iteration of a run in the folder, 0 for a tracker without steps; nullopt if none.
std::optional<std::int64_t> last_saved(const std::string& folder) {
  std::optional<std::int64_t> last;
  if (path_exists(join_path(folder, kTrackerName))) last = 0;
  for (const std::string& place : {folder, join_path(folder, kPassingName)}) {
    std::vector<std::int64_t> steps = complete_steps(place);
    if (!steps.empty()) last = std::max(last.value_or(0), steps.back());
  }
  return last;
}

// Whether the run continues the one in --save; --finetune begins a new one.
bool continues(const CheckpointConfig& checkpoint) {
  return same_folder(checkpoint.load, checkpoint.save) && !checkpoint.finetune;
}

std::string next_replaced(const std::string& folder) {
  for (int number = 1;; ++number) {
    std::string path = join_path(folder, concat("replaced-", number));
    if (!path_exists(path)) return path;
  }
}

// Whether an entry of a run's folder belongs to the run that is replaced.
bool of_run(const std::string& name) {
  return name.starts_with(kStepPrefix) || name == kTrackerName || name == kPassingName ||
         name == kRunMetricsName || name == kLossCurveName || name == kRunRecordName ||
         name == kModelFilesName || name == kProgressName;
}

// Models that Hugging Face does not have leave their tokenizer alone.
std::vector<ExportFile> model_files(const RunConfig& run) {
  try {
    return export_files(run, run.precision.model_dtype());
  } catch (const Error&) {
    return tokenizer_export_files(run.data.tokenizer, run.data.tiktoken);
  }
}

// Those that a record has; 0 if it has none, or is damaged and about to be replaced.
std::int64_t text_tokens_before(const std::string& record) {
  try {
    return path_exists(record) ? read_run_record(record).text_tokens : 0;
  } catch (const Error&) {
    return 0;
  }
}

}  // namespace

std::optional<std::int64_t> settle_existing_run(const RunConfig& run, const FieldList& fields,
                                                Options& options) {
  const CheckpointConfig& checkpoint = run.checkpoint;
  const std::string& save = checkpoint.save;
  if (save.empty()) return std::nullopt;
  std::optional<std::int64_t> last = last_saved(save);
  if (!last || continues(checkpoint) || run.train.dry_run) return last;
  bool begins = checkpoint.finetune || checkpoint.moe_use_upcycling;
  if (checkpoint.existing_run == ExistingRun::kResume) {
    constexpr const char* kOrigin = "--existing-run";
    options.set(fields, {"load", {save}, kOrigin});
    for (const char* flag : {"finetune", "moe-use-upcycling"}) {
      if (options.given(flag)) options.set(fields, {flag, {"false"}, kOrigin});
    }
    if (options.given("ckpt-step")) {
      options.add_problems(std::vector<std::string>{
          "--ckpt-step: --existing-run resume goes on from the last checkpoint; leave it out, or "
          "name the folder by --load"});
    }
  } else if (checkpoint.existing_run == ExistingRun::kRefuse) {
    options.add_problems(std::vector{
        concat("--save: ", save, " holds a run, saved up to iteration ", *last,
               "; go on with it by ", begins ? "--existing-run resume" : concat("--load ", save),
               ", begin anew by ", "--existing-run replace, which keeps the old run in ",
               next_replaced(save), ", or give another folder")});
  }
  return last;
}

void place_outputs(RunConfig& run, const Options& options) {
  const std::string& save = run.checkpoint.save;
  if (save.empty()) return;
  auto place = [&](const char* flag, std::string& path, const char* name) {
    if (!options.given(flag)) path = join_path(save, name);
  };
  place("loss-svg", run.log.loss_svg, kLossCurveName);
  place("data-cache-path", run.data.data_cache_path, kCacheName);
  const Setting* trace = options.find("profile-trace");
  if (trace != nullptr && trace->origin == "--profile") {
    run.profile.profile_trace = join_path(save, run.profile.profile_trace);
  }
}

std::string metrics_path(const RunConfig& run) {
  const std::string &named = run.log.metrics_out, &save = run.checkpoint.save;
  return !named.empty() || save.empty() ? named : join_path(save, kRunMetricsName);
}

std::string metrics_of_run(const std::string& folder) {
  std::string path = join_path(folder, kRunMetricsName);
  BEV_CHECK(path_exists(path), ErrorKind::kInput, folder, ": has no metrics (", path,
            " is missing); a run writes them with --save, or to the file of --metrics-out");
  return path;
}

bool replaces_run(const CheckpointConfig& checkpoint, std::optional<std::int64_t> last) {
  return last && !continues(checkpoint);
}

std::string move_old_run(const std::string& folder) {
  std::string to = next_replaced(folder);
  make_directories(to);
  // The tracker goes first: without it, the steps that are left are still found.
  std::vector<std::string> names = list_directory(folder);
  std::ranges::stable_partition(names, [](const auto& name) { return name == kTrackerName; });
  for (const std::string& name : names) {
    if (!of_run(name)) continue;
    std::error_code error;
    fs::rename(join_path(folder, name), join_path(to, name), error);
    bool gone = error == std::errc::no_such_file_or_directory;  // another process has moved it
    BEV_CHECK(!error || gone, ErrorKind::kIo, "cannot move ", join_path(folder, name), " to ", to,
              ": ", error.message());
  }
  sync_folder(to);
  sync_folder(folder);
  return to;
}

void move_local_checkpoints(const CheckpointConfig& checkpoint) {
  const std::string& folder = checkpoint.non_persistent_local_ckpt_dir;
  if (folder.empty() || !is_directory(folder)) return;
  bool any = std::ranges::any_of(list_directory(folder), of_run);
  if (any) move_old_run(folder);
}

RunFolder::RunFolder(const RunConfig& run, const Options& options, std::optional<std::int64_t> last)
    : run_(run),
      options_(options),
      replaces_(replaces_run(run.checkpoint, last)),
      has_text_(!run.data.text.empty()),
      lock_(run.checkpoint.save) {
  std::optional<std::int64_t> now = last_saved(run.checkpoint.save);
  BEV_CHECK(now == last, ErrorKind::kConfig, "--save ", run.checkpoint.save,
            ": another run has saved iteration ", now.value_or(0),
            " there in the meantime; start again, and the checkpoint is seen");
}

void RunFolder::begin() {
  const std::string& folder = run_.checkpoint.save;
  if (replaces_) {
    log_info(concat("--existing-run replace: the old run is kept in ", move_old_run(folder),
                    "; remove it when it is no longer needed"));
    const std::string& passing = run_.checkpoint.non_persistent_global_ckpt_dir;
    if (!passing.empty() && latest_step(passing)) move_old_run(passing);
  }
  try {
    write_record();
    std::string files = join_path(folder, kModelFilesName);
    for (const ExportFile& file : model_files(run_)) {
      std::string path = join_path(files, file.name);
      make_directories(parent_path(path));
      write_file(path, file.content);
    }
  } catch (const Error& error) {
    log_warning(concat(error.what(), "; the run goes on, but --load ", folder,
                       " alone will not know its flags or tokenizer"));
  }
}

void RunFolder::write_record() {
  std::string path = join_path(run_.checkpoint.save, kRunRecordName);
  // The text has become token files.
  std::int64_t now = has_text_ ? IndexedDataset(run_.data.data_path.at(0)).num_tokens() : 0;
  std::int64_t before = text_tokens_before(path);
  if (now > 0 && before > 0 && now != before) {
    log_warning(concat("--text: has ", now, " tokens, but ", before,
                       " when the run was last started: it was changed, and from here on the run "
                       "sees the samples of the new text in an order of its own"));
  }
  write_file(path, run_record_json(options_, now));
}

}  // namespace bev
