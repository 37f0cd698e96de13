// Rewards by programs: whatever a worker does, a call ends in time, and rows that it spoils have no
// reward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>

#include "base/clock.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/philox.h"
#include "reward/child_process.h"
#include "reward/reward.h"
#include "tests/support/temp_folder.h"

namespace bev::test {
namespace {

using testing::HasSubstr;

// The completion of a row says what the worker does with it: "ok N" is a reward of N.
constexpr char kWorker[] = R"(
while read -r line; do
  id=${line#*\"id\":}; id=${id%%,*}
  task=${line#*\"completion\":\"}; task=${task%%\"*}
  case $task in
    ok*) echo "{\"id\": $id, \"reward\": ${task#ok }, \"metrics\": {\"seen\": 1}}" ;;
    die) kill -9 $$ ;;
    leave) exit 3 ;;
    sleep) sleep 1000 ;;
    junk) echo "what is this" ;;
    nan) echo "{\"id\": $id, \"reward\": NaN}" ;;
    null) echo "{\"id\": $id, \"reward\": null}" ;;
    other) echo '{"id": 123456789, "reward": 1}' ;;
    chatty) echo "debug output"; echo "{\"id\": $id, \"reward\": 0.5}" ;;
    flood) head -c 20000000 /dev/zero | tr '\0' x ;;
    deaf) exec 0<&-; sleep 1000 ;;
    mute) exec 1>&-; sleep 1000 ;;
    child) (sleep 1000 &) ; echo "{\"id\": $id, \"reward\": 2}" ;;
  esac
done
)";

std::vector<RewardRow> rows_of(const std::vector<std::string>& tasks) {
  std::vector<RewardRow> rows(tasks.size());
  for (std::size_t i = 0; i < tasks.size(); ++i) rows[i].completion = tasks[i];
  return rows;
}

struct Workers {
  explicit Workers(RewardOptions options) {
    folder.write("worker.sh", kWorker);
    reward = make_reward("exec:sh " + folder.path("worker.sh"), options);
  }
  std::vector<RowReward> score(const std::vector<std::string>& tasks) {
    return reward->score(rows_of(tasks));
  }
  TempFolder folder;
  std::unique_ptr<Reward> reward;
};

TEST(Rewards, ProgramsAnswerRowByRow) {
  Workers workers({.timeout_s = 30, .workers = 2});
  EXPECT_EQ(workers.reward->name(), "sh");
  std::vector<RowReward> values = workers.score({"ok 1", "ok -0.5", "null", "chatty", "nan"});
  EXPECT_EQ(values[0].reward, 1);
  ASSERT_EQ(values[0].metrics.size(), 1U);
  EXPECT_EQ(values[0].metrics[0].first, "seen");
  EXPECT_EQ(values[1].reward, -0.5);
  EXPECT_THAT(values[2].problem, HasSubstr("gave no reward"));
  EXPECT_EQ(values[3].reward, 0.5);
  EXPECT_THAT(values[4].problem, HasSubstr("NaN"));
  // The same workers serve the next step.
  EXPECT_EQ(workers.score({"ok 3"})[0].reward, 3);
}

TEST(Rewards, WorkersMayAnswerInAnyOrder) {
  TempFolder folder;
  folder.write("w.sh", R"(
while read -r a && read -r b; do
  for line in "$b" "$a"; do
    id=${line#*\"id\":}; id=${id%%,*}
    task=${line#*\"completion\":\"}; task=${task%%\"*}
    echo "{\"id\": $id, \"reward\": $task}"
  done
done
)");
  auto reward = make_reward("exec:sh " + folder.path("w.sh"), {.workers = 1, .worker_rows = 2});
  std::vector<RowReward> values = reward->score(rows_of({"1", "2", "3", "4"}));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(values[i].reward, static_cast<double>(i + 1));
}

TEST(Rewards, AProgramThatIsNotThereIsNamed) {
  auto reward = make_reward("exec:/no/such/program", {.timeout_s = 20});
  double begin = monotonic_seconds();
  RowReward value = reward->score(rows_of({"ok 1"}))[0];
  EXPECT_THAT(value.problem, HasSubstr("'/no/such/program' has ended (exit code 127)"));
  EXPECT_LT(monotonic_seconds() - begin, 10);
}

// Each run is a random list of faults between good rows.
void run_with_faults(std::uint32_t seed) {
  constexpr double kTimeout = 1.0, kRowTimeout = 0.3;
  const std::vector<std::string> kinds = {"die",   "leave", "sleep", "junk", "nan",  "null",
                                          "other", "flood", "deaf",  "mute", "child"};
  Workers workers({.timeout_s = kTimeout,
                   .row_timeout_s = kRowTimeout,
                   .workers = 3,
                   .worker_rows = 1 + seed % 2});
  std::vector<std::string> tasks;
  for (std::uint32_t i = 0; i < 6; ++i) {
    std::uint32_t bits = philox({i, seed, 0, 0}, 17)[0];
    tasks.push_back(bits % 2 == 0 ? concat("ok ", i) : kinds[bits / 2 % kinds.size()]);
  }
  double begin = monotonic_seconds();
  std::vector<RowReward> values = workers.score(tasks);
  EXPECT_LT(monotonic_seconds() - begin, kTimeout + 3) << seed;  // a machine may be busy
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    SCOPED_TRACE(concat("seed ", seed, " row ", i, " ", tasks[i]));
    EXPECT_EQ(std::isnan(values[i].reward), !values[i].problem.empty());
    if (!tasks[i].starts_with("ok") && tasks[i] != "child") {
      EXPECT_TRUE(std::isnan(values[i].reward));
    } else if (!std::isnan(values[i].reward)) {
      EXPECT_EQ(values[i].reward, tasks[i] == "child" ? 2 : std::stod(tasks[i].substr(3)));
    }
  }
}

TEST(Rewards, FaultsNeverHang) {
  const std::uint32_t runs = environment_variables().contains("BEV_TEST_FULL") ? 100 : 8;
  for (std::uint32_t seed = 1; seed <= runs; ++seed) run_with_faults(seed);
}

TEST(Rewards, GoodRowsArePaidWhateverTheirNeighboursDo) {
  Workers workers({.timeout_s = 20, .row_timeout_s = 0.3, .workers = 2});
  std::vector<RowReward> values =
      workers.score({"sleep", "ok 1", "leave", "ok 2", "junk", "ok 3", "mute", "ok 4"});
  for (std::size_t i : {1, 3, 5, 7}) {
    EXPECT_EQ(values[i].reward, static_cast<double>(i + 1) / 2) << values[i].problem;
  }
  EXPECT_THAT(values[0].problem, HasSubstr("no answer of the worker within 0.3 s"));
  EXPECT_THAT(values[2].problem, HasSubstr("exit code 3"));
  EXPECT_THAT(values[4].problem, HasSubstr("what is this"));
}

// Environments speak the same protocol; what is wrong with one turn leaves the others alone.
TEST(Rewards, EnvironmentsReplyOrEnd) {
  TempFolder folder;
  folder.write("env.sh", R"(
while read -r line; do
  id=${line#*\"id\":}; id=${id%%,*}
  task=${line#*\"completion\":\"}; task=${task%%\"*}
  case $task in
    reply) echo "{\"id\": $id, \"reply\": \"go on\"}" ;;
    talk) echo "{\"id\": $id, \"messages\": [{\"role\": \"tool\", \"content\": \"4\"}]}" ;;
    done) echo "{\"id\": $id, \"done\": true}" ;;
    paid) echo "{\"id\": $id, \"done\": true, \"reward\": 0.5}" ;;
    turn) case $line in *'"turn":3,"last_turn":true'*) echo "{\"id\": $id, \"reward\": 3}" ;; esac ;;
    junk) echo "{\"id\": $id, \"reply\": 7}" ;;
    die) kill -9 $$ ;;
    sleep) sleep 1000 ;;
  esac
done
)");
  const std::string command = "exec:sh " + folder.path("env.sh");
  auto env = make_environment(command, {.timeout_s = 20, .row_timeout_s = 0.5, .workers = 2});
  std::vector<RewardRow> rows =
      rows_of({"reply", "talk", "done", "paid", "turn", "junk", "die", "sleep"});
  for (RewardRow& row : rows) row.turn = 3, row.last_turn = true;
  std::vector<RowReward> values = env->score(rows);
  ASSERT_TRUE(values[0].reply && values[1].reply);
  EXPECT_EQ(values[0].reply->text, "go on");
  EXPECT_FALSE(values[0].reply->messages);
  EXPECT_EQ(values[1].reply->text, R"([{"content":"4","role":"tool"}])");
  EXPECT_TRUE(values[1].reply->messages);
  EXPECT_FALSE(values[2].reply);
  EXPECT_TRUE(std::isnan(values[2].reward));
  EXPECT_EQ(values[2].problem, "");
  EXPECT_EQ(values[3].reward, 0.5);
  EXPECT_EQ(values[4].reward, 3);
  EXPECT_THAT(values[5].problem, HasSubstr("and no reply"));
  EXPECT_THAT(values[6].problem, HasSubstr("has ended ("));
  EXPECT_THAT(values[7].problem, HasSubstr("no answer of the worker within 0.5 s"));
  EXPECT_THROW(make_environment("exact", {}), Error);
}

// Where namespaces are not to be had, tests run without.
RewardOptions code_options(double row_timeout_s) {
  return {.row_timeout_s = row_timeout_s,
          .workers = 2,
          .allow_unsandboxed_code = !isolation_problem().empty()};
}

std::vector<RowReward> run_code(const std::vector<std::string>& programs,
                                const std::string& tests = "", double row_timeout_s = 30) {
  std::vector<RewardRow> rows = rows_of(programs);
  for (RewardRow& row : rows) row.label = tests, row.has_label = true;
  return make_reward("code:sh", code_options(row_timeout_s))->score(rows);
}

TEST(CodeReward, RunsTestsAfterTheCode) {
  std::vector<RowReward> values =
      run_code({"```sh\ndouble() { echo $((2 * $1)); }\n```", "double() { echo $1; }", "exit 0"},
               "[ \"$(double 4)\" = 8 ]");
  EXPECT_EQ(values[0].reward, 1);
  EXPECT_EQ(values[1].reward, 0);
  EXPECT_EQ(values[2].reward, 0);  // it ends before the tests
  RowReward endless = run_code({"while :; do :; done"}, "", 0.5)[0];
  EXPECT_THAT(endless.problem, HasSubstr("ran for more than 0.5 s"));
}

TEST(CodeReward, CodeReachesNeitherNetworkNorOtherProcesses) {
  if (!isolation_problem().empty()) GTEST_SKIP() << isolation_problem();
  const std::string alone = concat("[ $(grep -c : /proc/net/dev) -le 1 ]");
  std::vector<RowReward> values = run_code({alone, concat("kill -0 ", getpid()), "[ $$ -lt 5 ]"});
  EXPECT_EQ(values[0].reward, 1) << values[0].problem;
  EXPECT_EQ(values[1].reward, 0);
  EXPECT_EQ(values[2].reward, 1);
}

TEST(CodeReward, LimitsFilesAndLeavesNoProcess) {
  TempFolder folder;
  const std::string mark = folder.path("mark");
  std::vector<RowReward> values =
      run_code({"head -c 200000000 /dev/zero > big", concat("(sleep 1; touch ", mark, ") &")});
  EXPECT_EQ(values[0].reward, 0);
  EXPECT_EQ(values[1].reward, 1);
  struct stat status;
  double until = monotonic_seconds() + 1.5;
  while (monotonic_seconds() < until && stat(mark.c_str(), &status) != 0) usleep(50000);
  EXPECT_NE(stat(mark.c_str(), &status), 0) << "a process of the code has survived";
}

}  // namespace
}  // namespace bev::test
