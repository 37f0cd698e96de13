#include "reward/code_reward.h"

#include <stdlib.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "reward/child_process.h"

namespace bev {

namespace {

// A folder for one program, removed with all that it left there.
class Folder {
 public:
  Folder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "bevatron_code_XXXXXX").string();
    BEV_CHECK(mkdtemp(pattern.data()) != nullptr, ErrorKind::kIo, pattern, ": cannot be created");
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// What a program does last, so that one that ends before its tests does not pass; "" where the
// language is not known.
std::string mark_line(const std::string& interpreter, const std::string& mark) {
  std::string word = split(interpreter, ' ')[0];
  word.erase(0, word.rfind('/') + 1);
  if (word.starts_with("python")) return concat("open('", mark, "', 'w').close()");
  if (word == "sh" || word == "bash" || word == "dash") return concat("[ $? = 0 ] && : > ", mark);
  return "";
}

struct Trial {
  std::size_t row = 0;
  Folder folder = {};
  std::string mark = {};  // a file that the program must leave; "": none
  double until = 0;
  std::optional<ChildProcess> process = {};
};

class CodeReward final : public Reward {
 public:
  CodeReward(const std::string& interpreter, const RewardOptions& options)
      : interpreter_(interpreter), options_(options) {
    if (options.allow_unsandboxed_code) return;
    std::string problem = isolation_problem();
    BEV_CHECK(problem.empty(), ErrorKind::kConfig,
              "--reward code: this machine gives no namespaces (", problem,
              "), without which code reaches the network; run as a user who may create ",
              "them, or give --allow-unsandboxed-code");
  }

  std::string name() const override { return "code"; }
  bool needs_label() const override { return true; }

  std::vector<RowReward> score(std::span<const RewardRow> rows) override {
    constexpr double kPause = 0.002;
    std::vector<RowReward> values(rows.size());
    std::deque<std::unique_ptr<Trial>> running;
    const double until = monotonic_seconds() + options_.timeout_s;
    std::size_t next = 0;
    while (next < rows.size() || !running.empty()) {
      bool over = monotonic_seconds() >= until;
      while (!over && next < rows.size() && std::ssize(running) < options_.workers) {
        running.push_back(begin(rows[next], next, until));
        ++next;
      }
      for (; over && next < rows.size(); ++next) {
        values[next].problem = concat("not begun within ", options_.timeout_s, " s");
      }
      std::erase_if(running, [&](const auto& trial) { return finish(*trial, values[trial->row]); });
      if (!running.empty()) running.front()->process->ended(kPause);
    }
    return values;
  }

 private:
  std::unique_ptr<Trial> begin(const RewardRow& row, std::size_t index, double until) const {
    auto trial = std::make_unique<Trial>();
    trial->row = index;
    // Not to be guessed by code that was written before.
    const std::string& folder = trial->folder.path();
    const std::string mark = "passed" + folder.substr(folder.rfind('_'));
    const std::string last = mark_line(interpreter_, mark);
    if (!last.empty()) trial->mark = join_path(folder, mark);
    write_file(join_path(folder, "main"),
               concat(code_of(row.completion), "\n", row.label, "\n", last, "\n"));
    trial->until = std::min(until, monotonic_seconds() + options_.row_timeout_s);
    trial->process.emplace(ChildOptions{.words = {"/bin/sh", "-c", interpreter_ + " main"},
                                        .folder = trial->folder.path(),
                                        .confined = true,
                                        .isolated = !options_.allow_unsandboxed_code,
                                        .cpu_s = options_.row_timeout_s + 1,
                                        .memory_mb = options_.memory_mb});
    return trial;
  }

  bool finish(Trial& trial, RowReward& value) const {
    if (trial.process->ended()) {
      bool marked = trial.mark.empty() || path_exists(trial.mark);
      value.reward = trial.process->succeeded() && marked ? 1 : 0;
      return true;
    }
    if (monotonic_seconds() < trial.until) return false;
    value.problem = concat("the code ran for more than ", options_.row_timeout_s, " s");
    return true;
  }

  std::string interpreter_;
  RewardOptions options_;
};

}  // namespace

std::string code_of(const std::string& completion) {
  constexpr std::string_view kFence = "```";
  std::size_t end = completion.rfind(kFence);
  if (end == std::string::npos || end == 0) return completion;
  std::size_t begin = completion.rfind(kFence, end - 1);
  if (begin == std::string::npos) return completion;
  std::size_t line = completion.find('\n', begin);
  if (line == std::string::npos || line > end) return completion;
  return completion.substr(line + 1, end - line - 1);
}

std::unique_ptr<Reward> make_code_reward(const std::string& interpreter,
                                         const RewardOptions& options) {
  return std::make_unique<CodeReward>(interpreter, options);
}

}  // namespace bev
