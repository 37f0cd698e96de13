// Rewards of completions: functions of text built in, programs that speak JSON lines, code that is
// run against tests. A row that cannot be scored, for whatever fault of a program outside, has no
// reward and the reason why; no fault ends in a wait without end.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace bev {

struct RewardRow {
  std::string where;       // for messages: "F.jsonl:12"
  std::string prompt;      // text
  std::string completion;  // text
  std::string label;       // what a right answer is compared with
  bool has_label = false;
  std::string columns = "{}";  // the object that the row is from, as JSON
  std::vector<std::int32_t> completion_ids = {};
  std::int64_t step = 0;
  std::int64_t turn = 0;   // of a conversation with an environment, from 1; 0: there is none
  bool last_turn = false;  // a reply would be too late
};

// What an environment says to a turn of the model.
struct TurnReply {
  std::string text;       // as it stands behind the turn, or a list of messages as JSON
  bool messages = false;  // for the chat template
};

struct RowReward {
  double reward = std::numeric_limits<double>::quiet_NaN();  // NaN: none
  std::string problem = {};                                  // why there is none
  std::vector<std::pair<std::string, double>> metrics = {};  // what a program reports besides
  std::optional<TurnReply> reply = {};                       // of an environment that goes on
};

class Reward {
 public:
  virtual ~Reward() = default;
  // The name in metrics: "rewards/NAME/mean".
  virtual std::string name() const = 0;
  // Whether rows must have labels.
  virtual bool needs_label() const = 0;
  // A value for every row, in order.
  virtual std::vector<RowReward> score(std::span<const RewardRow> rows) = 0;
};

struct RewardOptions {
  double timeout_s = 60;          // of all rows of a call
  double row_timeout_s = 10;      // of a row at a worker, or of its tests
  std::int64_t workers = 2;       // processes, of programs and of tests
  std::int64_t worker_rows = 1;   // rows that a worker has at a time
  std::int64_t memory_mb = 1024;  // of a process that runs tests
  bool allow_unsandboxed_code = false;
  bool converses = false;  // programs are environments: they may reply instead of rewarding
};

// Makes the reward that a text describes:
//   exact | numeric[:TOLERANCE] | gsm8k | boxed | math | choice
//   regex:PATTERN | format:think | format:PATTERN | length:LEAST-MOST | json:SCHEMA.json
//   code[:INTERPRETER] | exec:COMMAND
// Throws Error(kConfig) naming the text if it is none of these, or cannot be used here.
std::unique_ptr<Reward> make_reward(const std::string& spec, const RewardOptions& options);

// An environment of conversations: exec:COMMAND. Its programs answer a turn with a reply, or end
// the conversation, with a reward or without one. Throws Error(kConfig) naming the text otherwise.
std::unique_ptr<Reward> make_environment(const std::string& spec, const RewardOptions& options);

// Several rewards as one: the sum of `weights` times those that a row has. A row that has none has
// none; each is a metric under its name.
std::vector<RowReward> weighted_rewards(std::span<const std::unique_ptr<Reward>> rewards,
                                        std::span<const double> weights,
                                        std::span<const RewardRow> rows);

// Throws Error(kInput) naming the first row without a label if a
// reward needs one.
void check_labels(std::span<const std::unique_ptr<Reward>> rewards,
                  std::span<const RewardRow> rows);

}  // namespace bev
