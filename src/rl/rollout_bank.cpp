#include "rl/rollout_bank.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace bev {

RolloutBank::RolloutBank(std::string folder, std::int64_t max_bytes, std::string settings)
    : folder_(std::move(folder)), max_bytes_(max_bytes), settings_(std::move(settings)) {}

std::string RolloutBank::path(std::int64_t phase) const {
  return join_path(folder_, fmt::format("phase_{:08}.jsonl", phase));
}

std::optional<RolloutPhase> RolloutBank::find(std::int64_t phase, bool any) const {
  if (folder_.empty() || phase < 0 || !path_exists(path(phase))) return std::nullopt;
  try {
    StoredPhase stored = read_phase(path(phase));
    if (any || stored.settings == settings_) return std::move(stored.phase);
  } catch (const Error& error) {
    log_warning(concat(error.what(), "; the completions are sampled again"));
  }
  return std::nullopt;
}

void RolloutBank::save(const RolloutPhase& phase) const {
  if (folder_.empty()) return;
  make_directories(folder_);
  write_file(path(phase.number), phase_text(phase, settings_));
  std::vector<std::string> names = list_directory(folder_);
  std::uintmax_t bytes = 0;
  for (std::size_t i = names.size(); i-- > 0;) {
    if (!names[i].starts_with("phase_")) continue;
    const std::string file = join_path(folder_, names[i]);
    std::error_code ignored;
    bytes += std::filesystem::file_size(file, ignored);
    bool spare = bytes > static_cast<std::uintmax_t>(max_bytes_) && file != path(phase.number);
    if (spare) std::filesystem::remove(file, ignored);
  }
}

}  // namespace bev
