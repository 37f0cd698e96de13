// Reinforcement learning as a user runs it: rl, reward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// A folder with a small byte model that has seen sums, and prompts.
class RlProgram : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = std::make_unique<TempFolder>();
    std::string text, prompts;
    for (int a = 0; a < 10; ++a) {
      for (int b = 0; b < 10; ++b) {
        text += concat(a, "+", b, "=", (a * b + a) % 10, "\n");
        prompts += concat("{\"prompt\": \"", a, "+", b, "=\", \"answer\": ", a + b, "}\n");
      }
    }
    model_->write("sums.txt", text);
    model_->write("prompts.jsonl", prompts);
    Outcome run = run_shell(
        *model_, concat(BEV_BINARY_DIR,
                        "/bevatron train --family llama --num-layers 2 --hidden-size 32 "
                        "--ffn-hidden-size 64 --num-attention-heads 4 --num-query-groups 2 "
                        "--text sums.txt --split 1,0,0 --seq-length 32 --micro-batch-size 8 "
                        "--train-iters 40 --lr 1e-2 --seed 3 --loss-svg '' --export-hf model"));
    ASSERT_EQ(run.code, 0) << run.err;
  }
  static void TearDownTestSuite() { model_.reset(); }

  static std::string command(const std::string& more) {
    return concat(
        BEV_BINARY_DIR, "/bevatron rl --hf-model ", model_->path("model"), " --data ",
        model_->path("prompts.jsonl"),
        " --max-completion-length 4 --stop '\\n' --prompts-per-step 4 --num-generations 4 "
        "--micro-batch-size 4 --lr 1e-3 --lr-decay-style constant --seed 5 --loss-svg '' ",
        more);
  }
  Outcome rl(const std::string& more) const { return run_shell(folder_, command(more)); }
  // The rows of the metrics of a run that must succeed.
  std::vector<json> metrics(const std::string& more) const {
    Outcome run = rl(concat("--metrics-out m.jsonl ", more));
    EXPECT_EQ(run.code, 0) << more << run.err;
    return rows("m.jsonl");
  }
  std::vector<json> rows(const std::string& name) const {
    std::vector<json> out;
    for (const std::string& line : split(read_file(folder_.path(name)), '\n')) {
      if (!line.empty()) out.push_back(json::parse(line));
    }
    return out;
  }

  static std::unique_ptr<TempFolder> model_;
  TempFolder folder_;
};
std::unique_ptr<TempFolder> RlProgram::model_;

// The log-probabilities of sampling are those of training, to the bit.
TEST_F(RlProgram, SamplingIsTrainingToTheBit) {
  for (const char* more :
       {"", "--bf16", "--tp 2", "--dp 2 --use-distributed-optimizer --temperature 0.7",
        "--pp 2 --lora-rank 4",
        "--dp 2 --data-parallel-sharding-strategy optim_grads_params --objective ppo"}) {
    SCOPED_TRACE(more);
    for (const json& row : metrics(concat("--reward numeric --train-iters 3 ", more))) {
      EXPECT_EQ(row["rollout/logprob_diff_max"], 0);
      EXPECT_EQ(row["rollout/token_mult_prob_error"], 1);
    }
  }
}

// The metrics of a run, to rounding.
void expect_same(const std::vector<json>& found, const std::vector<json>& expected,
                 const std::vector<std::string>& keys) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (const std::string& key : keys) {
      double wanted = expected[i][key];
      EXPECT_NEAR(found[i][key].get<double>(), wanted, 1e-9 * std::max(1.0, std::abs(wanted)))
          << key << " of iteration " << i + 1;
    }
  }
}

// Whatever the layout, the same completions are sampled and the same losses come of them.
TEST_F(RlProgram, LayoutsGiveOneRanksLosses) {
  const std::string run =
      "--fp64 --no-exact --reward 'regex:[02468]' length:1-2 --beta 0.05 --train-iters 4 "
      "--global-batch-size 8 ";
  const std::vector<std::string> keys = {"loss",
                                         "grad_norm",
                                         "kl",
                                         "reward",
                                         "entropy",
                                         "completions/mean_length",
                                         "importance_ratio"};
  std::vector<json> expected = metrics(run);
  ASSERT_EQ(expected.size(), 4U);
  EXPECT_GT(expected[3]["kl"].get<double>(), 0);
  for (const char* layout : {"--tp 2", "--pp 2", "--dp 2", "--dp 2 --use-distributed-optimizer",
                             "--dp 2 --data-parallel-sharding-strategy optim_grads",
                             "--dp 2 --data-parallel-sharding-strategy optim_grads_params",
                             "--tp 2 --dp 2 --use-distributed-optimizer"}) {
    SCOPED_TRACE(layout);
    expect_same(metrics(concat(run, layout)), expected, keys);
  }
}

// PPO: the critic is a head of the model, under every layout.
TEST_F(RlProgram, LayoutsGiveOneRanksCritic) {
  const std::string run =
      "--fp64 --no-exact --objective ppo --reward 'regex:[02468]' --beta 0.05 --train-iters 4 "
      "--global-batch-size 8 ";
  const std::vector<std::string> keys = {"loss",           "grad_norm", "kl",
                                         "loss/value_avg", "val/mean",  "val/explained_variance",
                                         "reward",         "entropy"};
  std::vector<json> expected = metrics(run);
  ASSERT_EQ(expected.size(), 4U);
  EXPECT_EQ(expected[0]["val/mean"], 0);  // of a new head
  EXPECT_NE(expected[3]["val/mean"], 0);
  EXPECT_GT(expected[0]["loss/value_avg"].get<double>(), 0);
  for (const char* layout :
       {"--tp 2", "--pp 2", "--dp 2 --data-parallel-sharding-strategy optim_grads_params",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"}) {
    SCOPED_TRACE(layout);
    expect_same(metrics(concat(run, layout)), expected, keys);
  }
}

// Checkpoints hold the critic; a run may go on between two updates with the same completions.
TEST_F(RlProgram, ACriticGoesOnFromACheckpoint) {
  const std::string run =
      "--deterministic-mode --objective ppo --reward 'regex:[02468]' --num-iterations 2 "
      "--train-iters 6 --save-interval 3 ";
  for (const char* more : {"", "--lora-rank 4 "}) {
    SCOPED_TRACE(more);
    Outcome whole = rl(concat(run, more, "--existing-run replace --save whole"));
    ASSERT_EQ(whole.code, 0) << whole.err;
    ASSERT_EQ(run_shell(folder_, "rm -rf parts && cp -r whole parts").code, 0);
    Outcome rest =
        run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron rl --load parts --ckpt-step 3"));
    ASSERT_EQ(rest.code, 0) << rest.err;
    Outcome same =
        run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron checkpoint diff whole parts"));
    EXPECT_EQ(same.code, 0) << same.out;
  }
  // A run without one may begin one, and the folder of Hugging Face's has none.
  Outcome plain = rl("--reward numeric --train-iters 1 --save plain");
  ASSERT_EQ(plain.code, 0) << plain.err;
  Outcome refused = rl("--reward numeric --train-iters 2 --objective ppo --load plain");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("the run trained no critic; add --finetune"));
  Outcome begun = rl(
      "--reward numeric --train-iters 2 --objective ppo --load plain --finetune --export-hf out");
  EXPECT_EQ(begun.code, 0) << begun.err;
  Outcome out = run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron generate --hf-model out ",
                                          "--prompt 1+1= --max-new-tokens 2"));
  EXPECT_EQ(out.code, 0) << out.err;
}

TEST_F(RlProgram, EveryObjectiveTrains) {
  for (const char* objective :
       {"grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce++", "ppo"}) {
    SCOPED_TRACE(objective);
    std::vector<json> found = metrics(concat(
        "--reward 'regex:[02468]' --train-iters 2 --num-iterations 2 --objective ", objective));
    ASSERT_EQ(found.size(), 2U);
    EXPECT_GT(found[0]["grad_norm"].get<double>(), 0);
    EXPECT_EQ(found[0]["reward"], found[1]["reward"]);  // of the same completions
    EXPECT_EQ(found[0]["importance_ratio"], 1);
    EXPECT_NE(found[1]["importance_ratio"], 1);
  }
}

// A small step of gradient descent lowers the loss by the learning rate times the square of the
// gradient's norm.
TEST_F(RlProgram, TheGradientIsThatOfTheLoss) {
  constexpr double kRate = 1e-6;
  for (const char* objective : {"grpo", "gspo", "dapo", "ppo --beta 0.1 --vf-coef 2"}) {
    SCOPED_TRACE(objective);
    std::vector<json> found = metrics(
        concat("--reward 'regex:[02468]' --train-iters 2 --num-iterations 2 --fp64 --no-exact ",
               "--optimizer sgd --sgd-momentum 0 --weight-decay 0 --clip-grad 0 --lr ", kRate,
               " --objective ", objective));
    ASSERT_EQ(found.size(), 2U);
    double norm = found[0]["grad_norm"],
           fall = found[0]["loss"].get<double>() - found[1]["loss"].get<double>();
    EXPECT_GT(norm, 1e-3);
    EXPECT_NEAR(fall / (kRate * norm * norm), 1, 1e-3);
  }
}

TEST_F(RlProgram, WritesItsRollouts) {
  metrics(
      "--reward 'regex:[02468]' --beta 0.1 --train-iters 2 --rollouts-out r.jsonl --report-html "
      "p.html");
  std::vector<json> found = rows("r.jsonl");
  ASSERT_EQ(found.size(), 32U);
  for (const json& row : found) {
    std::size_t tokens = row["completion_ids"].size();
    EXPECT_EQ(row["sampling_logps"], row["old_logps"]);
    EXPECT_EQ(row["ref_logps"].size(), tokens);
    EXPECT_EQ(row["weights_version"], row["step"].get<int>() - 1);
    EXPECT_TRUE(row["finish_reason"] == "stop" ||
                (row["finish_reason"] == "length" && tokens == 4));
    EXPECT_EQ(row["group"].get<int>() / 4, row["step"].get<int>() - 1);
    EXPECT_TRUE(row["reward"].is_number() && row["advantage"].is_number());
  }
  // The reference is the model that the run began with.
  EXPECT_EQ(found[0]["ref_logps"], found[0]["old_logps"]);
  EXPECT_NE(found[31]["ref_logps"], found[31]["old_logps"]);
  std::string page = read_file(folder_.path("p.html"));
  for (const char* part : {"<svg", "Reward", "Entropy", "KL divergence", "<pre>"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
}

// A run that is killed while it rewards the completions of its sixth step goes on to be the same.
TEST_F(RlProgram, AKilledRunGoesOnAsTheSame) {
  folder_.write("judge.sh", R"sh(
while read -r line; do
  id=${line#*\"id\":}; id=${id%%,*}
  step=${line##*\"step\":}; step=${step%%\}*}
  [ -f kill_at ] && [ "$step" = "$(cat kill_at)" ] && {
    rm kill_at;
    kill -9 $PPID;
    exit; }
  text=${line#*\"completion\":\"}; text=${text%%\"*}
  case $text in *[02468]*) reward=1 ;; *) reward=${#text} ;; esac
  echo "{\"id\": $id, \"reward\": $reward}"
done
)sh");
  const std::string run =
      "--reward 'exec:exec sh judge.sh' --reward-workers 1 --train-iters 8 "
      "--deterministic-mode --num-iterations 2 --beta 0.01 --save-interval 3 ";
  Outcome whole = rl(concat(run, "--save whole --rollouts-out whole.jsonl"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  folder_.write("kill_at", "7");
  folder_.write("run.sh",
                concat("echo $$ > pid\nexec ",
                       command(concat(run, "--save parts --rollouts-out parts.jsonl")), "\n"));
  Outcome killed = run_shell(folder_, "sh run.sh");
  EXPECT_EQ(killed.code, 137) << killed.err;
  EXPECT_FALSE(path_exists(folder_.path("kill_at")));
  // From the checkpoint of iteration 6, or from that of 3 in the middle of a phase.
  Outcome rest =
      run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron rl --load parts --ckpt-step 3"));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(read_file(folder_.path("parts.jsonl")), read_file(folder_.path("whole.jsonl")));
  std::vector<json> expected = rows("whole/metrics.jsonl"), found = rows("parts/metrics.jsonl");
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (const auto& [key, value] : expected[i].items()) {
      bool timed = key == "elapsed_ms" || key == "tokens_per_second";
      EXPECT_TRUE(timed || found[i][key] == value) << key << " of row " << i;
    }
  }
  Outcome same =
      run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron checkpoint diff whole parts"));
  EXPECT_EQ(same.code, 0) << same.out;
}

// Completions by group and place in it.
std::map<std::pair<int, int>, json> completions_of(const std::vector<json>& rollouts) {
  std::map<std::pair<int, int>, json> out;
  for (const json& row : rollouts) out[{row["group"], row["index"]}] = row["completion_ids"];
  return out;
}

// While the weights stay, a completion in parts is the completion at once.
TEST_F(RlProgram, PartsOfCompletionsMakeTheWhole) {
  const std::string run = "--reward length:1-1 --train-iters 4 --lr 0 --rollouts-out r.jsonl ";
  metrics(run);
  auto whole = completions_of(rows("r.jsonl"));
  for (const char* layout : {"", "--tp 2", "--dp 2"}) {
    SCOPED_TRACE(layout);
    std::vector<json> found = metrics(concat(run, "--partial-rollouts 1 ", layout));
    ASSERT_EQ(found.size(), 4U);
    EXPECT_LT(found[3]["rollout/logprob_diff_max"].get<double>(), 1e-5);
    auto parts = completions_of(rows("r.jsonl"));
    ASSERT_EQ(parts.size(), 64U);
    int shared = 0;
    for (const auto& [key, ids] : parts) {
      if (!whole.contains(key)) continue;
      EXPECT_EQ(ids, whole[key]);
      ++shared;
    }
    EXPECT_GE(shared, 32);
  }
}

TEST_F(RlProgram, PartialRolloutsKeepWithinTheirLag) {
  const std::string run =
      "--reward 'regex:[02468]' --train-iters 8 --partial-rollouts 1 --max-inflight-groups 6 "
      "--rollouts-out r.jsonl --deterministic-mode --save-interval 4 ";
  for (int lag : {0, 2}) {
    metrics(concat(run, "--existing-run replace --save run --rollout-max-lag ", lag));
    int most = 0;
    for (const json& row : rows("r.jsonl")) {
      most = std::max(most, row["step"].get<int>() - 1 - row["weights_version"].get<int>());
    }
    EXPECT_LE(most, lag);
    EXPECT_EQ(most > 0, lag > 0);
  }
  std::vector<json> expected = rows("r.jsonl");
  // What was carried is in --save: without the later phases the run samples the same again.
  ASSERT_EQ(
      run_shell(folder_, "cp -r run parts && rm parts/rollouts/phase_0000000[4-7].jsonl").code, 0);
  Outcome rest =
      run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron rl --load parts --ckpt-step 4"));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(rows("r.jsonl"), expected);
  Outcome same = run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron checkpoint diff run parts"));
  EXPECT_EQ(same.code, 0) << same.out;
}

// An environment replies to the first turn, and rewards the second one.
TEST_F(RlProgram, ConversationsGoOnBehindTheReply) {
  folder_.write("env.sh", R"sh(
while read -r line; do
  id=${line#*\"id\":}; id=${id%%,*}
  text=${line#*\"completion\":\"}; text=${text%%\"*}
  case $line in
    *'"last_turn":true'*) echo "{\"id\": $id, \"reward\": 0}" ;;
    *'"turn":1,'*) echo "{\"id\": $id, \"reply\": \"1+2=\"}" ;;
    *) echo "{\"id\": $id, \"done\": true, \"reward\": ${#text}}" ;;
  esac
done
)sh");
  for (const char* more : {"", "--tp 2", "--dp 2 --objective ppo --bf16"}) {
    SCOPED_TRACE(more);
    std::vector<json> found =
        metrics(concat("--env 'exec:sh env.sh' --max-completion-length 14 --train-iters 2 "
                       "--rollouts-out r.jsonl --beta 0.01 ",
                       more));
    for (const json& row : found) EXPECT_EQ(row["rollout/logprob_diff_max"], 0);
    int twice = 0;
    for (const json& row : rows("r.jsonl")) {
      EXPECT_TRUE(row["reward"].is_number()) << row.dump();
      if (!row.contains("turns")) continue;  // no room for a reply
      if (row["turns"] != 2) continue;
      ++twice;
      std::string reply;
      for (std::size_t t = 0; t < row["mask"].size(); ++t) {
        if (row["mask"][t] != 0) {
          EXPECT_EQ(row["sampling_logps"][t], row["old_logps"][t]);
        } else {
          EXPECT_EQ(row["sampling_logps"][t], 0);
          reply += static_cast<char>(row["completion_ids"][t].get<int>());
        }
      }
      EXPECT_EQ(reply, "1+2=");
    }
    EXPECT_GT(twice, 8);
  }
  folder_.write("endless.sh", R"sh(
while read -r line; do
  id=${line#*\"id\":}; id=${id%%,*}
  echo "{\"id\": $id, \"reply\": \"1+2=\"}"
done
)sh");
  Outcome run =
      rl("--env 'exec:sh endless.sh' --max-turns 2 --max-completion-length 14 "
         "--train-iters 1");
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.err, HasSubstr("16 of 16 completions have no reward"));
  EXPECT_THAT(run.err, HasSubstr("prompts.jsonl:"));
  EXPECT_THAT(run.err, HasSubstr("the environment has replied to turn"));
}

TEST_F(RlProgram, DynamicSamplingFillsTheBatch) {
  std::vector<json> found =
      metrics("--reward 'regex:[02468]' --train-iters 2 --dynamic-sampling --rollouts-out r.jsonl");
  for (const json& row : found) EXPECT_EQ(row["frac_reward_zero_std"], 0);
  EXPECT_EQ(rows("r.jsonl").size(), 32U);
  Outcome run = rl("--reward length:0-9 --train-iters 2 --dynamic-sampling --max-gen-batches 2");
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.err, HasSubstr("of 8 groups all but 0 have completions of one reward (100%)"));
}

// Rewards of a run, the mean of each ten steps from `begin` on.
class Learning {
 public:
  explicit Learning(const std::string& metrics) {
    for (const std::string& line : split(read_file(metrics), '\n')) {
      if (!line.empty()) rewards_.push_back(json::parse(line)["reward"]);
    }
  }
  std::size_t steps() const { return rewards_.size(); }
  double first() const { return rewards_.at(0); }
  double mean(std::size_t begin) const {
    double sum = 0;
    for (std::size_t i = begin; i < begin + 10; ++i) sum += rewards_.at(i) / 10;
    return sum;
  }

 private:
  std::vector<double> rewards_;
};

void expect_learnt(const std::string& metrics) {
  Learning run(metrics);
  ASSERT_EQ(run.steps(), 200U);
  EXPECT_LE(run.first(), 0.3);
  EXPECT_GE(run.mean(190), 0.9);
}

// The demo: from a quarter of the sums to nearly all of them, and the same with an adapter and with
// a critic. Long; test-full runs it.
TEST(RlDemo, DISABLED_LearnsSumsFromRewards) {
  for (const char* seed : {"1", "2", "3", "4", "5"}) {
    SCOPED_TRACE(seed);
    TempFolder folder;
    Outcome run =
        run_shell(folder, concat("SEED=", seed, " BEVATRON=", BEV_BINARY_DIR, "/bevatron ",
                                 BEV_SOURCE_DIR, "/tools/demo_rl.sh ", folder.path("demo")));
    ASSERT_EQ(run.code, 0) << run.err;
    expect_learnt(folder.path("demo/metrics.jsonl"));
    for (const char* more : {"--lora-rank 16 --lora-alpha 16 --lora-target-modules all-linear "
                             "--lora-modules-to-save norm "
                             "--lr 5e-3 --min-lr 5e-4 --lr-warmup-iters 5",
                             "--objective ppo --lr 1e-3 --min-lr 1e-4"}) {
      SCOPED_TRACE(more);
      Outcome other = run_shell(
          folder,
          concat(BEV_BINARY_DIR, "/bevatron rl --hf-model demo/before --data demo/prompts.jsonl ",
                 "--reward numeric --stop '\\n' --max-completion-length 4 --prompts-per-step 64 ",
                 "--num-generations 16 --micro-batch-size 256 --train-iters 200 --adam-beta2 0.95 ",
                 "--lr-decay-style cosine --weight-decay 0 --loss-svg '' --metrics-out m.jsonl ",
                 "--seed ", seed, " ", more));
      ASSERT_EQ(other.code, 0) << other.err;
      expect_learnt(folder.path("m.jsonl"));
    }
  }
}

// The model's own completions bring it closer to a teacher, here itself after some steps.
TEST_F(RlProgram, LearnsFromATeacherOnItsOwnCompletions) {
  Outcome made = rl("--reward 'regex:[02468]' --train-iters 12 --export-hf teacher");
  ASSERT_EQ(made.code, 0) << made.err;
  std::vector<json> found = metrics(
      "--teacher-model teacher --objective dr_grpo --aggregation token-mean --train-iters 30 "
      "--prompts-per-step 16 --micro-batch-size 16");
  double before = 0, after = 0;
  for (std::size_t i = 0; i < 5; ++i) {
    before += found[i]["teacher_kl"].get<double>() / 5;
    after += found[25 + i]["teacher_kl"].get<double>() / 5;
  }
  EXPECT_GT(before, 0.02);
  EXPECT_LT(after, 0.5 * before);
}

TEST_F(RlProgram, BadInputIsNamed) {
  auto fails = [&](const std::string& words, const std::string& why) {
    Outcome run = rl(concat("--train-iters 1 ", words));
    EXPECT_EQ(run.code, 2) << words << run.err;
    EXPECT_THAT(run.err, HasSubstr(why)) << words;
  };
  fails("", "--reward: is missing");
  fails("--reward exakt", "--reward exakt: is none of exact");
  fails("--reward numeric --label-key solution", "prompts.jsonl:1: has no 'solution'");
  fails("--reward exec:false", "16 of 16 completions have no reward, the first of");
  fails("--reward numeric --temperature 0", "--temperature: completions of a prompt must differ");
  fails("--reward numeric --context-parallel-size 2", "--context-parallel-size: completions are");
  fails("--reward numeric --global-batch-size 12",
        "--global-batch-size: 12 does not divide the 16");
  fails("--reward numeric --objective dpo", "--objective");
  fails("--reward numeric --gamma 0.9", "--gamma: grpo has no critic");
  fails("--reward numeric --value-head", "--value-head: is trained by rl --objective ppo alone");
  fails("--reward numeric --rl-inference-tensor-model-parallel-size 2",
        "`bevatron rl` samples in the layout of the training, on its parameters; leave it out");
  fails("--env http://host", "--env http://host: is no exec:COMMAND");
  fails("--reward numeric --partial-rollouts 2 --dynamic-sampling", "--dynamic-sampling: fills");
  fails("--reward numeric --partial-rollouts 2 --stop ab", "--stop: a text of several characters");
  fails("--reward numeric --max-inflight-groups 9", "--max-inflight-groups: needs");
  fails("--reward numeric --ref-model x", "--ref-model: grpo has no reference");
  folder_.write("nan.sh",
                "while read -r line; do id=${line#*\\\"id\\\":}; "
                "echo \"{\\\"id\\\": ${id%%,*}, \\\"reward\\\": NaN}\"; done\n");
  fails("--reward 'exec:sh nan.sh'", "NaN");
}

TEST_F(RlProgram, RewardScoresAFile) {
  folder_.write("rows.jsonl",
                R"({"id": "a", "prompt": "1+1=", "completion": "2", "label": 2}
{"id": 7, "prompt": "1+1=", "completion": "3", "answer": "2"}
)");
  const std::string reward = concat(BEV_BINARY_DIR, "/bevatron reward --input rows.jsonl ");
  Outcome run = run_shell(folder_, reward + "--reward numeric length:1-1 --reward-weights 1 0.5");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out,
            "{\"id\":\"a\",\"reward\":1.5,\"metrics\":{\"numeric\":1.0,\"length\":1.0}}\n"
            "{\"id\":7,\"reward\":0.5,\"metrics\":{\"numeric\":0.0,\"length\":1.0}}\n");
  run = run_shell(folder_, reward + "--reward 'exec:exit 4'");
  ASSERT_EQ(run.code, 0) << run.err;
  json line = json::parse(split(run.out, '\n')[0]);
  EXPECT_TRUE(line["reward"].is_null());
  EXPECT_THAT(line["problem"].get<std::string>(), HasSubstr("exit code 4"));
  folder_.write("rows.jsonl", R"({"prompt": "1+1=", "completion": "2"})");
  run = run_shell(folder_, reward + "--reward exact");
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.err, HasSubstr("rows.jsonl:1: has no label"));
}

}  // namespace
}  // namespace bev
