// Preferences as a user runs them: objective, score --objective.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "bridge/safetensors.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kPolicy = BEV_SOURCE_DIR "/tests/golden/models/llama_gqa";
const std::string kReference = BEV_SOURCE_DIR "/tests/golden/models/mistral_window_mqa";

Outcome bevatron(const TempFolder& folder, const std::string& words) {
  return run_shell(folder, concat(BEV_BINARY_DIR, "/bevatron ", words));
}

json golden_batches() {
  return json::parse(read_file(BEV_SOURCE_DIR "/tests/golden/objectives/completions.json"));
}

// Runs `score --objective` in f64; gradients are in g.safetensors.
json score(const TempFolder& folder, const std::string& objective, const json& batch,
           const std::string& more = "") {
  write_file(folder.path("b.json"), batch.dump());
  Outcome run =
      bevatron(folder, concat("score --fp64 --hf-model ", kPolicy, " --objective ", objective,
                              " --batch b.json --grads-out g.safetensors ", more));
  EXPECT_EQ(run.code, 0) << run.err;
  return run.code == 0 ? json::parse(run.out) : json();
}

std::vector<double> gradient(const TempFolder& folder, const std::string& name) {
  SafetensorsFile file(folder.path("g.safetensors"));
  TensorBytes tensor = file.tensor(name);
  EXPECT_EQ(tensor.dtype, Dtype::kF64);
  std::vector<double> values(tensor.bytes.size() / sizeof(double));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

double norm_of(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

void expect_near(const json& actual, const json& expected, double tolerance) {
  if (expected.is_structured()) {
    ASSERT_EQ(actual.size(), expected.size());
    for (const auto& [key, value] : expected.items()) {
      expect_near(expected.is_array() ? actual.at(std::stoul(key)) : actual.at(key), value,
                  tolerance);
    }
    return;
  }
  if (!expected.is_number()) {
    EXPECT_EQ(actual, expected);
    return;
  }
  double wanted = expected;
  EXPECT_NEAR(actual.get<double>(), wanted, tolerance * std::max(1.0, std::abs(wanted)));
}

// transformers computes norms and rotations in f32, whatever the model.
TEST(ScoreObjective, AgreesWithTorch) {
  TempFolder folder;
  for (const json& one : golden_batches()) {
    std::string name = one["objective"];
    SCOPED_TRACE(name);
    json line = score(folder, name, one["batch"], concat("--ref-model ", kReference));
    EXPECT_NEAR(line["loss"], one["loss"].get<double>(),
                1e-6 * std::max(1.0, std::abs(one["loss"].get<double>())));
    EXPECT_NEAR(line["grad_norm"], one["grad_norm"].get<double>(),
                1e-5 * line["grad_norm"].get<double>());
    if (!one["logps"].is_null()) expect_near(line["logps"], one["logps"], 1e-6);
    for (const auto& [tensor, norm] : one["norms"].items()) {
      EXPECT_NEAR(norm_of(gradient(folder, tensor)), norm, 1e-5 * line["grad_norm"].get<double>())
          << tensor;
    }
    for (const auto& [tensor, values] : one["grads"].items()) {
      std::vector<double> actual = gradient(folder, tensor);
      for (std::size_t i = 0; i < actual.size(); ++i) {
        EXPECT_NEAR(actual[i], values[i], 1e-5 * norm_of(actual)) << tensor;
      }
    }
  }
}

TEST(ScoreObjective, IsTheSameUnderEveryLayout) {
  TempFolder folder;
  for (const json& one : golden_batches()) {
    std::string name = one["objective"];
    if (name == "ipo" || name == "cpo") continue;
    json expected = score(folder, name, one["batch"], concat("--ref-model ", kReference));
    std::vector<double> whole = gradient(folder, "model.layers.1.mlp.up_proj.weight");
    for (const char* layout : {"--dp 3 --cp 2", "--pp 2 --dp 2 --tp 1"}) {
      SCOPED_TRACE(concat(name, " ", layout));
      json line =
          score(folder, name, one["batch"], concat("--ref-model ", kReference, " ", layout));
      expect_near(line, expected, 1e-11);
      std::vector<double> actual = gradient(folder, "model.layers.1.mlp.up_proj.weight");
      for (std::size_t i = 0; i < whole.size(); ++i) {
        EXPECT_NEAR(actual[i], whole[i], 1e-11 * norm_of(whole));
      }
    }
  }
}

TEST(ScoreObjective, PrecomputedReferencesHaveTheBitsOfTheModel) {
  TempFolder folder;
  json batch = golden_batches()[0]["batch"];
  write_file(folder.path("b.json"), batch.dump());
  auto run = [&](const std::string& words) {
    Outcome outcome = bevatron(folder, concat("score --objective dpo --batch b.json ", words));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out);
  };
  json by_model = run(concat("--hf-model ", kPolicy, " --ref-model ", kReference));
  json reference = run(concat("--hf-model ", kReference));
  for (std::size_t i = 0; i < batch["pairs"].size(); ++i) {
    batch["pairs"][i]["ref_chosen_logp"] = reference["logps"]["chosen"][i];
    batch["pairs"][i]["ref_rejected_logp"] = reference["logps"]["rejected"][i];
  }
  write_file(folder.path("b.json"), batch.dump());
  EXPECT_EQ(run(concat("--hf-model ", kPolicy)), by_model);
  Outcome both = bevatron(folder, concat("score --objective dpo --batch b.json --hf-model ",
                                         kPolicy, " --ref-model ", kReference));
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("--ref-model: the batch has ref_chosen_logp; keep one"));
}

TEST(ScoreObjective, RefusesWhatIsWrongByName) {
  TempFolder folder;
  auto refuses = [&](const std::string& objective, const json& batch, const std::string& message,
                     const std::string& more = "") {
    write_file(folder.path("b.json"), batch.dump());
    Outcome run = bevatron(folder, concat("score --hf-model ", kPolicy, " --objective ", objective,
                                          " --batch b.json ", more));
    EXPECT_EQ(run.code, 2) << run.out;
    EXPECT_THAT(run.err, HasSubstr(message));
  };
  json pair = {{"prompt_ids", {1}}, {"chosen_ids", {2}}, {"rejected_ids", {3}}};
  auto with = [](json object, const char* key, const json& value) {
    object[key] = value;
    return object;
  };
  refuses("dpo", {{"rows", {pair}}}, "rows is no field of a batch for dpo; it has pairs");
  refuses("dpo", {{"pairs", {pair, with(pair, "rejected_ids", json::array())}}},
          "b.json: pairs entry 1: rejected_ids is empty");
  refuses("dpo", {{"pairs", {with(pair, "chosen_ids", {97})}}}, "97 is outside [0, 97)");
  refuses("dpo", {{"pairs", {with(pair, "chosen", {9})}}}, "'chosen' is no field");
  refuses("dpo", {{"pairs", {with(pair, "ref_chosen_logp", -1)}}}, "come together");
  json both = with(with(pair, "ref_chosen_logp", -1), "ref_rejected_logp", -2);
  refuses("dpo", {{"pairs", {pair, both}}},
          "pairs entry 0: ref_chosen_logp is missing, which b.json: pairs entry 1 has");
  refuses("dpo", {{"pairs", {pair}}, {"settings", {{"bta", 1}}}}, "'bta' is no field of dpo");
  refuses("gae", {{"pairs", {pair}}}, "is no objective over completions");
  json row = {{"prompt_ids", {1}}, {"completion_ids", {2}}};
  refuses("kto", {{"rows", {row}}}, "rows entry 0: label is missing");
  refuses("grpo", {{"rollouts", {row}}}, "reward, or advantage, is missing");
  refuses("grpo", {{"rollouts", {with(row, "reward", 1)}}}, "group is missing");
  json rollout = with(with(row, "reward", 1), "group", 1);
  refuses("grpo", {{"rollouts", {with(rollout, "mask", {1, 0})}}},
          "mask has 2 numbers and the completion 1 tokens");
  refuses("grpo", {{"rollouts", {rollout}}, {"settings", {{"beta", 1}}}},
          "needs ref_logps or --ref-model");
  refuses("dpo", {{"pairs", {pair}}}, "a vocabulary of 331",
          concat("--ref-model ", BEV_SOURCE_DIR, "/tests/golden/models/mistral_full"));
}

TEST(ObjectiveCommand, ComputesWithoutAModel) {
  TempFolder folder;
  folder.write("in.json",
               R"({"policy_chosen_logps": [-12], "policy_rejected_logps": [-15], "beta": 0.1})");
  Outcome run = bevatron(folder, "objective dpo --input in.json");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_NEAR(json::parse(run.out)["loss"], 0.5543552444685271, 1e-12);
  for (const char* words : {"objective dqo --input in.json", "objective --input in.json",
                            "objective dpo --input none.json", "objective kto --input in.json"}) {
    EXPECT_EQ(bevatron(folder, words).code, 2) << words;
  }
}

// A tiny model with a tokenizer and a chat template, and preferences about its words.
class Tuning {
 public:
  Tuning() {
    std::string text, pairs, rows, chats;
    const char* words[] = {"cat", "sat", "on", "a", "mat", "red", "dogs", "run"};
    for (int i = 0; i < 40; ++i) {
      std::string question = concat("the ", words[i % 8], " ", words[i * 5 % 7]);
      std::string more = i % 3 == 0 ? concat(" and ", words[i % 5]) : "";
      text += concat(question, " yes no ", words[i % 3], " and sun\n");
      json pair = {{"prompt", {{{"role", "user"}, {"content", question}}}},
                   {"chosen", {{{"role", "assistant"}, {"content", "yes"}}}},
                   {"rejected", {{{"role", "assistant"}, {"content", "no" + more}}}}};
      pairs += pair.dump() + "\n";
      chats += json({{"messages", {pair["prompt"][0], pair["chosen"][0]}}}).dump() + "\n";
      rows += json({{"prompt", question},
                    {"completion", i % 2 == 0 ? " yes" : " no" + more},
                    {"label", i % 2 == 0}})
                  .dump() +
              "\n";
    }
    folder.write("text.txt", text);
    folder.write("pairs.jsonl", pairs);
    folder.write("chats.jsonl", chats);
    folder.write("rows.jsonl", rows);
    run("tokenizer train --input text.txt --vocab-size 300 --special-tokens '<|endoftext|>' "
        "'<|user|>' "
        "'<|assistant|>' '<|end|>' --output tok");
    run("train --family llama --num-layers 2 --hidden-size 32 --num-attention-heads 4 --text "
        "text.txt --tokenizer tok --seq-length 32 --train-iters 2 --micro-batch-size 2 --export-hf "
        "base");
    folder.write("base/chat_template.jinja",
                 "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
                 "{% if add_generation_prompt %}<|assistant|>{% endif %}");
  }

  Outcome run(const std::string& words) const {
    Outcome outcome = bevatron(folder, words);
    EXPECT_EQ(outcome.code, 0) << words << "\n" << outcome.err;
    return outcome;
  }
  // Trains for some steps; returns the lines of the metrics.
  std::vector<json> train(const std::string& words) const {
    std::string model = words.find("--hf-model") == words.npos ? "--hf-model base " : "";
    run(concat("train --seq-length 32 --lr 3e-3 --metrics-out m.jsonl ", model, words));
    std::vector<json> lines;
    for (const std::string& line : split(read_file(folder.path("m.jsonl")), '\n')) {
      if (!line.empty()) lines.push_back(json::parse(line));
    }
    return lines;
  }

  TempFolder folder;
};

// What of a step must not depend on how it was computed.
std::vector<double> losses_of(const std::vector<json>& lines) {
  std::vector<double> out;
  for (const json& line : lines) out.push_back(line["loss"]);
  return out;
}

TEST(PreferenceTraining, LearnsWhatIsPreferred) {
  Tuning tuning;
  std::vector<json> lines = tuning.train(
      "--objective dpo --data pairs.jsonl --beta 0.5 --micro-batch-size 4 --global-batch-size 8 "
      "--train-iters 12 --valid-data pairs.jsonl --eval-interval 12 --full-validation");
  // Policy and reference are alike at first.
  EXPECT_NEAR(lines.front()["loss"], std::log(2.0), 1e-12);
  EXPECT_EQ(lines.front()["rewards/margins"], 0.0);
  const json& last = lines[11];
  EXPECT_LT(last["loss"].get<double>(), 0.4);
  EXPECT_EQ(last["rewards/accuracies"], 1.0);
  EXPECT_GT(last["rewards/margins"].get<double>(), 1.0);
  EXPECT_LT(last["logps/chosen"].get<double>(), 0.0);
  EXPECT_EQ(lines.back()["split"], "valid");
  EXPECT_LT(lines.back()["loss"].get<double>(), 0.4);
}

TEST(PreferenceTraining, IsTheSameHoweverBatchesAreCut) {
  Tuning tuning;
  for (const char* objective :
       {"kto --data rows.jsonl", "orpo --data pairs.jsonl", "dpo --data pairs.jsonl"}) {
    SCOPED_TRACE(objective);
    auto run = [&](const char* cut) {
      std::vector<json> lines = tuning.train(
          concat("--fp64 --objective ", objective, " --global-batch-size 8 --train-iters 4 ", cut));
      EXPECT_EQ(lines.size(), 4u);
      return lines;
    };
    std::vector<json> expected = run("--micro-batch-size 8");
    for (const char* cut : {"--micro-batch-size 1", "--micro-batch-size 2 --dp 2",
                            "--micro-batch-size 2 --dp 2 --cp 2"}) {
      std::vector<json> lines = run(cut);
      for (std::size_t i = 0; i < lines.size(); ++i) {
        for (const char* key : {"loss", "grad_norm", "rewards/chosen", "logps/rejected"}) {
          double wanted = expected[i][key];
          // Rounding grows with the steps.
          const double tolerance = i == 0 ? 1e-11 : 1e-9;
          EXPECT_NEAR(lines[i][key], wanted, tolerance * std::max(1.0, std::abs(wanted)))
              << cut << " " << key << " " << i;
        }
        EXPECT_EQ(lines[i]["consumed_tokens"], expected[i]["consumed_tokens"]);
      }
    }
  }
}

TEST(PreferenceTraining, GoesOnBitForBit) {
  Tuning tuning;
  const std::string run =
      "--objective kto --data rows.jsonl --micro-batch-size 2 --global-batch-size 8 "
      "--train-iters 6 ";
  std::vector<json> whole = tuning.train(run);
  tuning.train(run + "--save part --exit-interval 3");
  std::vector<json> rest = tuning.train(run + "--load part");
  std::vector<double> expected = losses_of(whole), actual = losses_of(rest);
  EXPECT_EQ(std::vector<double>(actual.end() - 3, actual.end()),
            std::vector<double>(expected.end() - 3, expected.end()));
}

TEST(PreferenceTraining, AModelWithoutItsAdaptersIsItsReference) {
  Tuning tuning;
  const std::string lora = "--lora-rank 4 --lora-target-modules all-linear ";
  for (const char* objective :
       {"dpo --data pairs.jsonl", "kto --data rows.jsonl",
        "dpo --data pairs.jsonl --lora-modules-to-save embed_tokens lm_head norm",
        "dpo --data pairs.jsonl --lora-init pissa"}) {
    const std::string run = concat("--objective ", objective, " --micro-batch-size 2 ",
                                   "--global-batch-size 8 --train-iters 4 ", lora);
    const std::vector<double> own = losses_of(tuning.train(run));
    EXPECT_EQ(losses_of(tuning.train(run + "--ref-model base")), own) << objective;
    EXPECT_NE(own.front(), own.back());
    // Other weights give another loss.
    EXPECT_NE(losses_of(tuning.train(run + "--ref-model base --seed 5")).back(), own.back());
  }
}

TEST(PreferenceTraining, PrecomputedReferencesGiveTheBitsOfTheModel) {
  Tuning tuning;
  const std::string run =
      "--objective dpo --micro-batch-size 1 --global-batch-size 4 --train-iters 5 ";
  tuning.folder.write("few.jsonl", R"({"prompt": "the cat", "chosen": " sat", "rejected": " run"}
{"prompt": "the dogs", "chosen": " run on a mat", "rejected": " yes"}
{"chosen": "the red mat and sun", "rejected": "the red mat yes"}
{"prompt": "a cat", "chosen": " on", "rejected": " on"}
)");
  std::vector<json> by_model = tuning.train(run + "--data few.jsonl");
  // The ids of these rows, as the dataset makes them.
  std::string with_columns;
  for (const std::string& line : split(read_file(tuning.folder.path("few.jsonl")), '\n')) {
    if (line.empty()) continue;
    json row = json::parse(line), batch;
    if (!row.contains("prompt")) {
      row = {{"prompt", "the red mat"}, {"chosen", " and sun"}, {"rejected", " yes"}};
    }
    auto ids = [&](const std::string& text) {
      tuning.folder.write("text.json", json::array({text}).dump());
      Outcome out = tuning.run("tokenize --tokenizer base --input text.json");
      return json::parse(out.out)[0];
    };
    json prompt = ids(row["prompt"]);
    auto answer = [&](const char* name) {
      json whole = ids(row["prompt"].get<std::string>() + row[name].get<std::string>());
      json rest = json::array();
      for (std::size_t i = prompt.size(); i < whole.size(); ++i) rest.push_back(whole[i]);
      rest.push_back(ids("<|endoftext|>")[0]);
      return rest;
    };
    json pair = {{"prompt_ids", prompt},
                 {"chosen_ids", answer("chosen")},
                 {"rejected_ids", answer("rejected")}};
    tuning.folder.write("b.json", json({{"pairs", {pair}}}).dump());
    Outcome out = tuning.run("score --hf-model base --objective dpo --batch b.json");
    json logps = json::parse(out.out)["logps"];
    row["ref_chosen_logps"] = logps["chosen"][0];
    row["ref_rejected_logps"] = logps["rejected"][0];
    with_columns += row.dump() + "\n";
  }
  tuning.folder.write("columns.jsonl", with_columns);
  std::vector<json> by_columns = tuning.train(run + "--data columns.jsonl");
  EXPECT_EQ(losses_of(by_columns), losses_of(by_model));
}

TEST(PreferenceTraining, NamesBadDataByFileAndLine) {
  Tuning tuning;
  auto refuses = [&](const std::string& objective, const std::string& line,
                     const std::string& message) {
    bool kto = objective.starts_with("kto");
    std::string good = kto ? R"({"prompt": "a", "completion": " b", "label": 1})"
                           : R"({"prompt": "a", "chosen": " b", "rejected": " c"})";
    tuning.folder.write("bad.jsonl", good + "\n" + line + "\n");
    Outcome run = bevatron(tuning.folder, concat("train --hf-model base --train-iters 1 --data "
                                                 "bad.jsonl --objective ",
                                                 objective));
    EXPECT_EQ(run.code, 2) << run.out;
    EXPECT_THAT(run.err, HasSubstr(message));
  };
  auto at = [](const char* text) { return concat("bad.jsonl, line 2: ", text); };
  refuses("dpo", R"({"prompt": "a", "chosen": " b"})", at("\"rejected\" is missing"));
  refuses("dpo", R"({"prompt": "a", "chosen": " b", "rejected": ""})", at("\"rejected\" is empty"));
  refuses("dpo", R"({"chosen": "a b", "rejected": "c"})", at("\"prompt\" is missing, and"));
  refuses("dpo", R"({"prompt": "a", "chosen": 3, "rejected": "c"})",
          at("\"chosen\" is neither a text nor a list of messages"));
  refuses("dpo",
          R"({"prompt": [{"role": "assistant", "content": "x"}], "chosen": [], "rejected": []})",
          at("\"prompt\" ends with a message of the assistant"));
  refuses("dpo",
          R"({"prompt": [{"role": "user", "content": "x"}],
              "chosen": [{"role": "user", "content": "y"}], "rejected": []})",
          "bad.jsonl, line 2");
  refuses(
      "dpo",
      R"({"prompt": [{"role": "user", "content": "x"}], "chosen": [{"role": "user", "content": "y"}], "rejected": [{"role": "assistant", "content": "z"}]})",
      at("\"chosen\" begins with a message of the user"));
  refuses(
      "dpo",
      R"({"prompt": [{"role": "user", "content": "x"}], "chosen": [{"role": "assistant", "content": ""}], "rejected": [{"role": "assistant", "content": "z"}]})",
      at("the answer of \"chosen\" is empty"));
  refuses("dpo", R"({"prompt": "a", "completion": "b", "label": true})",
          at("has one completion; this objective takes rows with prompt, chosen and rejected"));
  refuses(
      "dpo",
      R"({"prompt": "a", "chosen": " b", "rejected": " c", "ref_chosen_logps": -1, "ref_rejected_logps": -2})",
      "line 1: \"ref_chosen_logps\" is missing, which bad.jsonl, line 2 has");
  refuses("kto", R"({"prompt": "a", "completion": "b"})", at("\"label\" is missing"));
  refuses("kto", R"({"prompt": "a", "completion": "b", "label": 2})",
          at("\"label\" is neither true nor false"));
  refuses("dpo --simpo-gamma 1 --desirable-weight 2", "{}",
          "--desirable-weight: dpo has no such setting");
  refuses("simpo --ref-model base", "{}", "--ref-model: simpo has no reference");
  // Equal answers are said once.
  tuning.folder.write("same.jsonl",
                      "{\"prompt\": \"a\", \"chosen\": \" b\", \"rejected\": \" b\"}\n");
  Outcome same = tuning.run(
      "train --hf-model base --train-iters 1 --data same.jsonl --objective dpo --seq-length 32");
  EXPECT_THAT(same.err, HasSubstr("1 with equal answers, from which nothing can be learned (the "
                                  "first is same.jsonl, line 1)"));
}

// A language model becomes a reward model, which goes on training as one.
TEST(PreferenceTraining, RewardModelsLearnToTellAnswersApart) {
  Tuning tuning;
  const std::string words =
      "--objective reward --data pairs.jsonl --micro-batch-size 2 --global-batch-size 8 "
      "--train-iters 12 --center-rewards-coefficient 0.01 ";
  json last = tuning.train(words + "--export-hf reward").back();
  EXPECT_GE(last["accuracy"].get<double>(), 0.9) << last.dump();
  EXPECT_TRUE(last.contains("margin") && last.contains("mean_reward")) << last.dump();
  json config = json::parse(read_file(tuning.folder.path("reward/config.json")));
  EXPECT_EQ(config["architectures"], json({"LlamaForSequenceClassification"}));
  EXPECT_TRUE(config["pad_token_id"].is_number()) << config.dump();
  tuning.folder.write("t.json", R"({"input_ids": [[5, 6, 7], [8, 9, 10]]})");
  json line = json::parse(tuning.run("score --hf-model reward --tokens t.json").out);
  EXPECT_EQ(line["scores"].size(), 2u);
  // A folder with a head keeps it.
  json first = tuning.train(words + "--hf-model reward --export-hf again").front();
  EXPECT_GE(first["accuracy"].get<double>(), 0.9) << first.dump();
}

// With an adapter the new head trains as a whole and is a part of the adapter's folder.
TEST(PreferenceTraining, RewardModelsWithLoraKeepTheirHeadInTheAdapter) {
  Tuning tuning;
  json last = tuning
                  .train(
                      "--objective reward --data pairs.jsonl --micro-batch-size 2 "
                      "--global-batch-size 8 --train-iters 12 --lora-rank 4 --lora-target-modules "
                      "all-linear --save reward-run --export-adapter reward-adapter")
                  .back();
  EXPECT_GE(last["accuracy"].get<double>(), 0.9) << last.dump();
  json config = json::parse(read_file(tuning.folder.path("reward-adapter/adapter_config.json")));
  EXPECT_EQ(config["task_type"], "SEQ_CLS");
  EXPECT_EQ(config["modules_to_save"], json({"score"}));
  tuning.folder.write("t.json", R"({"input_ids": [[5, 6, 7], [8, 9, 10]]})");
  auto scores = [&](const std::string& model) {
    return json::parse(tuning.run(concat("score ", model, " --tokens t.json")).out)["scores"];
  };
  EXPECT_EQ(scores("--hf-model base --adapter reward-adapter"), scores("--load reward-run"));
}

TEST(PreferenceTraining, RewardsNeedAHeadAndHeadsRewards) {
  Tuning tuning;
  auto refuses = [&](const std::string& words, const std::string& why) {
    Outcome run = run_shell(tuning.folder, concat(BEV_BINARY_DIR,
                                                  "/bevatron train --hf-model base "
                                                  "--seq-length 32 --train-iters 1 ",
                                                  words));
    EXPECT_EQ(run.code, 2) << words;
    EXPECT_THAT(run.err, HasSubstr(why));
  };
  refuses("--num-labels 3 --objective reward --data pairs.jsonl", "needs a head of one label");
  refuses("--num-labels 1 --objective dpo --data pairs.jsonl", "predicts no tokens");
  refuses("--num-labels 1 --text text.txt", "predicts no tokens");
}

// The commands between two headings of docs/posttraining.md, with continued lines joined.
std::vector<std::string> documented_commands(const std::string& from, const std::string& to) {
  std::string text = read_file(BEV_SOURCE_DIR "/docs/posttraining.md");
  const std::size_t begin = text.find("\n## " + from), end = text.find("\n## " + to);
  EXPECT_TRUE(begin < end && end < text.size()) << from;
  text = text.substr(begin, end - begin);
  for (std::size_t at; (at = text.find("\\\n")) != text.npos;) text.replace(at, 2, " ");
  std::vector<std::string> commands;
  const std::string program = "build/bevatron ";
  for (const std::string& line : split(text, '\n')) {
    if (line.starts_with(program)) commands.push_back(line.substr(program.size()));
  }
  return commands;
}

// In order, on a tiny model.
TEST(PreferenceTraining, TheDocumentedCommandsRun) {
  Tuning tuning;
  std::vector<std::string> commands = documented_commands("Chat tuning", "Reward model");
  EXPECT_EQ(commands.size(), 9u);
  for (const std::string& command : documented_commands("Reward model", "LoRA")) {
    if (command.starts_with("train")) commands.push_back(command);
  }
  for (const std::string& command : commands) {
    bool tiny = command.starts_with("train") && command.find("--preset") == command.npos;
    tuning.run(concat(
        command, tiny ? " --seq-length 32" : "",
        command.starts_with("train") || command.starts_with("generate") ? " --device cpu" : ""));
  }
  EXPECT_TRUE(is_directory(tuning.folder.path("chat")));
  EXPECT_TRUE(is_directory(tuning.folder.path("qlora")));
  EXPECT_TRUE(is_directory(tuning.folder.path("tuned")));
  EXPECT_TRUE(is_directory(tuning.folder.path("kto-tuned")));
  EXPECT_TRUE(is_directory(tuning.folder.path("reward")));
}

}  // namespace
}  // namespace bev
