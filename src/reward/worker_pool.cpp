#include "reward/worker_pool.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/json_check.h"
#include "reward/child_process.h"

namespace bev {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kLongestLine = std::size_t{16} << 20;
// A worker that ends so often in a row without an answer is not started again in this call.
constexpr int kMostDeaths = 3;

struct Worker {
  std::unique_ptr<ChildProcess> process = {};
  std::string unsent = {}, unread = {};
  std::map<std::int64_t, double> rows = {};  // that it has, by id: the time when each must be done
  std::string last_junk = {};
  int deaths = 0;
};

// Rows of one call.
class Round {
 public:
  Round(std::vector<Worker>& workers, const std::string& command, const RewardOptions& options,
        std::span<const RewardRow> rows, std::int64_t first_id)
      : workers_(workers),
        command_(command),
        options_(options),
        rows_(rows),
        first_id_(first_id),
        values_(rows.size()),
        answered_(rows.size()),
        tries_(rows.size()),
        until_(monotonic_seconds() + options.timeout_s) {
    for (std::size_t i = 0; i < rows.size(); ++i) waiting_.push_back(i);
    for (Worker& worker : workers_) worker.deaths = 0;
  }

  std::vector<RowReward> run() {
    while (left() && monotonic_seconds() < until_) {
      if (!deal()) break;
      wait();
      for (Worker& worker : workers_) {
        if (worker.process) exchange(worker);
        if (worker.process) expire(worker);
      }
    }
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      fail(i, last_end_.empty()
                  ? concat("no answer of '", command_, "' within ", options_.timeout_s, " s")
                  : last_end_);
    }
    // What is answered later would be for nobody.
    for (Worker& worker : workers_) {
      if (!worker.rows.empty()) worker = {};
    }
    return std::move(values_);
  }

 private:
  bool left() const { return std::ranges::find(answered_, false) != answered_.end(); }
  std::size_t index(std::int64_t id) const { return static_cast<std::size_t>(id - first_id_); }

  void fail(std::size_t row, const std::string& why) {
    if (answered_[row]) return;
    answered_[row] = true;
    values_[row].problem = why;
  }

  // Gives waiting rows to workers. False if nobody has any and no worker can be started.
  bool deal() {
    bool busy = false;
    for (Worker& worker : workers_) {
      while (!waiting_.empty() && std::ssize(worker.rows) < options_.worker_rows &&
             worker.deaths < kMostDeaths) {
        if (!worker.process) start(worker);
        if (!worker.process) break;
        std::size_t row = waiting_.front();
        waiting_.pop_front();
        worker.rows[first_id_ + static_cast<std::int64_t>(row)] =
            monotonic_seconds() + options_.row_timeout_s;
        ++tries_[row];
        worker.unsent += line_of(row);
      }
      busy = busy || !worker.rows.empty();
    }
    return busy;
  }

  void start(Worker& worker) {
    worker.unsent.clear();
    worker.unread.clear();
    worker.last_junk.clear();
    try {
      worker.process = std::make_unique<ChildProcess>(
          ChildOptions{.words = {"/bin/sh", "-c", command_}, .folder = "", .speaks = true});
    } catch (const Error& error) {
      last_end_ = error.what();
      worker.deaths = kMostDeaths;
    }
  }

  std::string line_of(std::size_t i) const {
    const RewardRow& row = rows_[i];
    nlohmann::ordered_json line;
    line["id"] = first_id_ + static_cast<std::int64_t>(i);
    line["prompt"] = row.prompt;
    line["completion"] = row.completion;
    line["completion_ids"] = row.completion_ids;
    line["label"] = row.has_label ? nlohmann::ordered_json(row.label) : nullptr;
    line["row"] = nlohmann::ordered_json::parse(row.columns);
    line["step"] = row.step;
    if (row.turn > 0) {
      line["turn"] = row.turn;
      line["last_turn"] = row.last_turn;
    }
    return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }

  void wait() {
    std::vector<pollfd> files;
    double next = until_;
    for (const Worker& worker : workers_) {
      if (!worker.process) continue;
      short events = worker.unsent.empty() ? POLLIN : POLLIN | POLLOUT;
      files.push_back({worker.process->socket(), events, 0});
      for (const auto& [id, until] : worker.rows) next = std::min(next, until);
    }
    double seconds = std::clamp(next - monotonic_seconds(), 0.0, 1.0);
    poll(files.data(), files.size(), static_cast<int>(std::ceil(seconds * 1000)));
  }

  // Sends and receives what is there.
  void exchange(Worker& worker) {
    int file = worker.process->socket();
    while (!worker.unsent.empty()) {
      ssize_t sent = send(file, worker.unsent.data(), worker.unsent.size(), MSG_NOSIGNAL);
      if (sent <= 0) break;
      worker.unsent.erase(0, static_cast<std::size_t>(sent));
    }
    char bytes[65536];
    for (;;) {
      ssize_t got = recv(file, bytes, sizeof bytes, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (got <= 0) return end(worker);
      worker.unread.append(bytes, static_cast<std::size_t>(got));
      take_lines(worker);
      if (worker.unread.size() > kLongestLine) {
        return stop(worker, "a worker wrote a line of more than 16 MiB");
      }
    }
  }

  void take_lines(Worker& worker) {
    std::size_t begin = 0, end = 0;
    while ((end = worker.unread.find('\n', begin)) != std::string::npos) {
      take_line(worker, std::string_view(worker.unread).substr(begin, end - begin));
      begin = end + 1;
    }
    worker.unread.erase(0, begin);
  }

  bool answers(const Json& answer) const {
    auto is = [&](const char* name, auto test) {
      auto found = answer.find(name);
      return found != answer.end() && test(*found);
    };
    if (!answer.is_object() || !is("id", [](const Json& id) { return id.is_number_integer(); })) {
      return false;
    }
    bool pays =
        is("reward", [](const Json& reward) { return reward.is_number() || reward.is_null(); });
    if (pays || !options_.converses) return pays;
    return is("reply", [](const Json& reply) { return reply.is_string(); }) ||
           is("messages", [](const Json& messages) { return messages.is_array(); }) ||
           is("done", [](const Json& done) { return done == true; });
  }

  void take_reply(const Json& answer, RowReward& value) const {
    if (!options_.converses || answer.value("done", Json(false)) == true) return;
    auto text = answer.find("reply"), messages = answer.find("messages");
    if (text != answer.end() && text->is_string()) {
      value.reply = TurnReply{text->get<std::string>()};
    } else if (messages != answer.end() && messages->is_array()) {
      value.reply = TurnReply{messages->dump(), true};
    }
  }

  void take_line(Worker& worker, std::string_view line) {
    Json answer = Json::parse(line, nullptr, false);
    if (!answers(answer)) {
      worker.last_junk = quote(line);
      // A broken answer, such as a NaN, which JSON does not have, is that of the only row.
      bool of_row = trim(line).starts_with('{') && worker.rows.size() == 1;
      if (!of_row) return;
      auto only = worker.rows.begin();
      fail(index(only->first),
           concat("the worker's answer is no {\"id\", \"reward\": a number or "
                  "null}",
                  options_.converses ? " and no reply: " : ": ", worker.last_junk));
      worker.rows.erase(only);
      return;
    }
    auto found = worker.rows.find(answer["id"].get<std::int64_t>());
    if (found == worker.rows.end()) return;  // of an earlier row that was given up
    std::size_t row = index(found->first);
    worker.rows.erase(found);
    worker.deaths = 0;
    const bool paid = answer.contains("reward") && answer["reward"].is_number();
    if (!paid && !options_.converses) return fail(row, "the worker gave no reward");
    answered_[row] = true;
    if (paid) values_[row].reward = answer["reward"].get<double>();
    take_reply(answer, values_[row]);
    auto metrics = answer.find("metrics");
    if (metrics == answer.end() || !metrics->is_object()) return;
    for (const auto& [name, value] : metrics->items()) {
      if (value.is_number()) values_[row].metrics.emplace_back(name, value.get<double>());
    }
  }

  void end(Worker& worker) {
    constexpr double kGrace = 0.2;
    ++worker.deaths;
    std::string how = worker.process->ended(kGrace) ? worker.process->end_text() : "closed pipe";
    stop(worker, concat("the worker '", command_, "' has ended (", how, ")"));
  }

  // Kills a worker; its rows are tried once more.
  void stop(Worker& worker, const std::string& why) {
    last_end_ = why;
    worker.process.reset();
    for (const auto& [id, until] : worker.rows) {
      if (tries_[index(id)] < 2) {
        waiting_.push_front(index(id));
      } else {
        fail(index(id), why);
      }
    }
    worker.rows.clear();
  }

  // A row whose time is over has no reward, and its worker is killed.
  void expire(Worker& worker) {
    double now = monotonic_seconds();
    auto late =
        std::ranges::find_if(worker.rows, [&](const auto& row) { return row.second <= now; });
    if (late == worker.rows.end()) return;
    std::string junk = worker.last_junk.empty() ? "" : concat("; it wrote ", worker.last_junk);
    std::string why = concat("no answer of the worker within ", options_.row_timeout_s, " s", junk);
    fail(index(late->first), why);
    worker.rows.erase(late);
    stop(worker, why);
  }

  std::vector<Worker>& workers_;
  const std::string& command_;
  const RewardOptions& options_;
  std::span<const RewardRow> rows_;
  std::int64_t first_id_;
  std::vector<RowReward> values_;
  std::vector<bool> answered_;
  std::vector<int> tries_;
  std::deque<std::size_t> waiting_;
  double until_;
  std::string last_end_;
};

class ProgramReward final : public Reward {
 public:
  ProgramReward(const std::string& command, const RewardOptions& options)
      : command_(command), options_(options), workers_(static_cast<std::size_t>(options.workers)) {}

  std::string name() const override {
    std::string word = split(command_, ' ')[0];
    return word.substr(word.rfind('/') + 1);
  }
  bool needs_label() const override { return false; }
  std::vector<RowReward> score(std::span<const RewardRow> rows) override {
    std::int64_t first = next_id_;
    next_id_ += std::ssize(rows);
    return Round(workers_, command_, options_, rows, first).run();
  }

 private:
  std::string command_;
  RewardOptions options_;
  std::vector<Worker> workers_;
  std::int64_t next_id_ = 0;  // never used again, so that late answers are recognised
};

}  // namespace

std::unique_ptr<Reward> make_program_reward(const std::string& command,
                                            const RewardOptions& options) {
  return std::make_unique<ProgramReward>(command, options);
}

}  // namespace bev
