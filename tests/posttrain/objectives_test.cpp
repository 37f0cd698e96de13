// Objectives of log-probabilities: golden numbers, the formulas of the reference packages in torch,
// finite differences, and inputs that are wrong.
#include "posttrain/objectives.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "posttrain/objective_input.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

using Json = nlohmann::json;

Json evaluate(const std::string& name, const Json& input) {
  return Json::parse(
      objective_json(find_objective(name), JsonPlace::parse(input.dump(), "in.json")));
}

double loss_of(const std::string& name, const Json& input) {
  return evaluate(name, input)["loss"].get<double>();
}

// The pair of the golden numbers.
Json golden_pair() {
  return {{"policy_chosen_logps", {-12}},
          {"policy_rejected_logps", {-15}},
          {"ref_chosen_logps", {-13}},
          {"ref_rejected_logps", {-14.5}},
          {"chosen_lengths", {6}},
          {"rejected_lengths", {5}},
          {"beta", 0.1},
          {"label_smoothing", 0.1}};
}

TEST(Objectives, PairsGiveTheGoldenNumbers) {
  const std::pair<const char*, double> kLosses[] = {{"dpo", 0.6209570477895321},
                                                    {"cdpo", 0.6359570477895321},
                                                    {"robust", 0.602207047789532},
                                                    {"hinge", 0.85},
                                                    {"ipo", 22.404444444444444},
                                                    {"exo_pair", 0.43138845722278607},
                                                    {"nca_pair", 1.3508248141169994},
                                                    {"bco_pair", 1.3128563080868572},
                                                    {"sppo_hard", 36.25},
                                                    {"apo_zero", 0.9625234160368497},
                                                    {"apo_down", 0.9875493421351904},
                                                    {"discopop", 0.8493375792893855},
                                                    {"sigmoid_norm", 0.6799027334818809}};
  for (const auto& [name, loss] : kLosses) {
    EXPECT_NEAR(loss_of(name, golden_pair()), loss, 1e-12) << name;
  }
  Json dpo = evaluate("dpo", golden_pair());
  EXPECT_NEAR(dpo["grads"]["policy_chosen_logps"][0], -0.04625701546562505, 1e-15);
  EXPECT_NEAR(dpo["grads"]["policy_rejected_logps"][0], 0.04625701546562505, 1e-15);
  EXPECT_NEAR(dpo["metrics"]["rewards/chosen"], 0.1, 1e-15);
  EXPECT_NEAR(dpo["metrics"]["rewards/rejected"], -0.05, 1e-15);
  EXPECT_EQ(dpo["metrics"]["rewards/accuracies"], 1.0);
  EXPECT_EQ(dpo["metrics"]["logps/chosen"], -12.0);
  Json free = golden_pair();
  free.erase("ref_chosen_logps");
  free.erase("ref_rejected_logps");
  EXPECT_NEAR(loss_of("dpo", free), 0.5543552444685271, 1e-12);
}

TEST(Objectives, OddsAndMarginsGiveTheGoldenNumbers) {
  Json means = {{"policy_chosen_logps", {-0.8}},
                {"policy_rejected_logps", {-1.2}},
                {"chosen_lengths", {1}},
                {"rejected_lengths", {1}}};
  Json orpo = evaluate("orpo", means);
  EXPECT_NEAR(orpo["loss"], 0.04241061322020204, 1e-12);
  EXPECT_NEAR(orpo["metrics"]["log_odds_chosen"], 0.6382352613285414, 1e-12);
  EXPECT_NEAR(orpo["metrics"]["log_odds_ratio"], -0.4241061322020203, 1e-12);
  means["chosen_nll"] = 2;
  orpo = evaluate("orpo", means);
  EXPECT_NEAR(orpo["loss"], 2.04241061322020204, 1e-12);
  EXPECT_NEAR(orpo["losses"][0], 0.04241061322020204, 1e-12);
  means["gamma"] = 0.5;
  EXPECT_NEAR(loss_of("simpo", means), 0.9493672174742773, 1e-12);
  means["beta"] = 2;
  means["gamma"] = 1;
  EXPECT_NEAR(loss_of("simpo", means), 0.798138869381592, 1e-12);
}

TEST(Objectives, KtoAndRewardsGiveTheGoldenNumbers) {
  Json kto = evaluate("kto", {{"policy_logps", {0.8, -0.4, 1.5}},
                              {"policy_kl_logps", {0.2, -0.1, 0.5}},
                              {"labels", {true, false, true}}});
  EXPECT_NEAR(kto["metrics"]["kl"], 0.2, 1e-15);
  EXPECT_NEAR(kto["losses"][0], 0.48500449838059, 1e-12);
  EXPECT_NEAR(kto["losses"][1], 0.48500449838059, 1e-12);
  EXPECT_NEAR(kto["losses"][2], 0.4675456936126813, 1e-12);
  EXPECT_NEAR(kto["loss"], 0.47918489679128706, 1e-12);
  Json rewards = {{"chosen_rewards", {1.3}}, {"rejected_rewards", {0.4}}};
  EXPECT_NEAR(loss_of("reward", rewards), 0.3411538747320878, 1e-12);
  rewards["center_rewards_coefficient"] = 0.01;
  EXPECT_NEAR(loss_of("reward", rewards), 0.3411538747320878 + 0.0289, 1e-12);
  rewards["center_rewards_coefficient"] = 0;
  rewards["margins"] = {0.5};
  EXPECT_NEAR(loss_of("reward", rewards), 0.5130152523999526, 1e-12);
}

TEST(Objectives, AdvantagesGiveTheGoldenNumbers) {
  Json input = {
      {"rewards", {1, 0, 0, 1, 1, 0, 0.5, 0}}, {"groups", Json::array()}, {"logps", Json::array()}};
  for (int i = 0; i < 8; ++i) {
    input["groups"].push_back(7);
    input["logps"].push_back({-1});
  }
  auto first_two = [&](const char* name) {
    Json advantages = evaluate(name, input)["advantages"];
    return std::pair(advantages[0].get<double>(), advantages[1].get<double>());
  };
  EXPECT_NEAR(first_two("grpo").first, 1.1349521583108195, 1e-12);
  EXPECT_NEAR(first_two("grpo").second, -0.8827405675750818, 1e-12);
  EXPECT_NEAR(first_two("rloo").first, 0.6428571428571428, 1e-12);
  EXPECT_NEAR(first_two("rloo").second, -0.5, 1e-12);
  input["advantage_eps"] = 1e-6;
  EXPECT_NEAR(first_two("dapo").first, 1.1351789120919367, 1e-12);
  input["advantage_eps"] = 1e-4;
  input["advantage_std"] = "population";
  EXPECT_NEAR(first_two("dapo").first, 1.2132979907255241, 1e-12);
}

TEST(Objectives, PolicyTermsGiveTheGoldenNumbers) {
  const double kClips[][3] = {
      {0.7, 1, -0.7}, {0.7, -1, 0.8}, {1.4, 1, -1.28}, {1.4, -1, 1.4}, {5, -1, 5}};
  for (const auto& [ratio, advantage, loss] : kClips) {
    Json input = {
        {"logps", {{std::log(ratio)}}}, {"old_logps", {{0}}}, {"advantages", {advantage}}};
    EXPECT_NEAR(loss_of("dapo", input), loss, 1e-12);
    input["dual_clip"] = 3;
    EXPECT_NEAR(loss_of("dapo", input), std::min(loss, 3.0), 1e-12);
  }
  const double kKls[][4] = {{-1, 1, 0.5, 0.36787944117144233},
                            {0.1, -0.1, 0.005, 0.005170918075647624},
                            {1, -1, 0.5, 0.7182818284590451}};
  for (const auto& [d, k1, k2, k3] : kKls) {
    Json input = {{"logps", {{-1}}}, {"ref_logps", {{d - 1}}}, {"advantages", {0}}, {"beta", 1}};
    for (const auto& [kl, value] : {std::pair("k1", k1), {"k2", k2}, {"k3", k3}}) {
      input["kl"] = kl;
      EXPECT_NEAR(loss_of("ppo", input), value, 1e-12) << kl;
    }
  }
  Json gspo = {{"logps", {{0.1, -0.2, 0.3, 0.05}}},
               {"old_logps", {{0, 0, 0, 0}}},
               {"advantages", {-1}},
               {"epsilon_high", 1}};
  EXPECT_NEAR(loss_of("gspo", gspo), 1.0644944589178593, 1e-12);
}

// The bound `delta` of the unclipped ratio may be below that of the clipped one, which then counts.
TEST(Objectives, TheBoundOfTheRatioStopsOnlyItself) {
  for (double ratio : {0.7, 0.9, 1.02, 1.1, 1.2, 1.4}) {
    for (double advantage : {1.0, -1.0}) {
      const double clipped = std::min(std::max(ratio, 0.8), 1.28), capped = std::min(ratio, 1.05);
      const bool free = -capped * advantage >= -clipped * advantage;
      Json value = evaluate("dapo", {{"logps", {{std::log(ratio)}}},
                                     {"old_logps", {{0}}},
                                     {"advantages", {advantage}},
                                     {"delta", 1.05}});
      EXPECT_NEAR(value["loss"], -(free ? capped : clipped) * advantage, 1e-12) << ratio;
      const bool moves = free ? ratio < 1.05 : ratio > 0.8 && ratio < 1.28;
      EXPECT_NEAR(value["grads"]["logps"][0][0], moves ? -ratio * advantage : 0, 1e-12) << ratio;
    }
  }
}

TEST(Objectives, AggregationsGiveTheGoldenNumbers) {
  Json input = {{"logps", {{-1, -2, -.5}, {-.7, -1.5}}},
                {"old_logps", {{-1.1, -1.9, -.5}, {-.9, -1}}},
                {"ref_logps", {{-1.2, -2, -.4}, {-.7, -1.4}}},
                {"advantages", {1, -1}},
                {"epsilon_low", 0.2},
                {"epsilon_high", 0.28},
                {"beta", 0.04},
                {"max_completion_length", 8}};
  const std::pair<const char*, double> kLosses[] = {
      {"token-mean", -0.19748853487645324},
      {"seq-mean-token-mean", 0.0038936871765552494},
      {"seq-mean-token-sum", -0.4937213371911331},
      {"seq-mean-token-sum-norm", -0.061715167148891636}};
  for (const auto& [aggregation, loss] : kLosses) {
    input["aggregation"] = aggregation;
    EXPECT_NEAR(loss_of("grpo", input), loss, 1e-12) << aggregation;
  }
  const double kTokens[] = {-1.1044216879525284, -0.9048374180359595, -0.9997931632769741,
                            1.2214027581601699, 0.800206836723026};
  Json tokens = evaluate("grpo", input)["token_loss"];
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(i < 3 ? tokens[0][i] : tokens[1][i - 3], kTokens[i], 1e-12);
  }
}

TEST(Objectives, AdvantageEstimationGivesTheGoldenNumbers) {
  Json input = {{"rewards", {0, 0, 1}}, {"values", {0.5, 0.6, 0.7}}};
  auto expect = [&](const Json& values, const std::vector<double>& expected) {
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(values[i].get<double>(), expected[i], 1e-12);
  };
  Json out = evaluate("gae", input);
  expect(out["advantages"], {0.46575, 0.385, 0.3});
  expect(out["returns"], {0.96575, 0.985, 1.0});
  // Values are carried over tokens that are no part of the row.
  Json holes = {{"rewards", {{0, 9, 0, 1, 9}}},
                {"values", {{0.5, 9, 0.6, 0.7, 9}}},
                {"mask", {{1, 0, 1, 1, 0}}},
                {"whiten", true}};
  out = evaluate("gae", holes);
  const double kWhite[] = {0.9913436473039307, 0, 0.01709213185006791, -1.0084357791539986, 0};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(out["advantages"][0][i], kWhite[i], 1e-12);
  EXPECT_NEAR(out["returns"][0][2], 0.985, 1e-12);
}

TEST(Objectives, CriticsGiveTheGoldenNumbers) {
  Json input = {{"logps", {{-1, -2, -.5}, {-.7, -1.5}}},
                {"old_logps", {{-1.1, -1.9, -.5}, {-.9, -1}}},
                {"advantages", {{0.5, -1, 2}, {-0.3, 1.2}}},
                {"values", {{0.2, 0.9, -0.4}, {1.0, 0.1}}},
                {"old_values", {{0.25, 0.5, -0.4}, {0.6, 0.05}}},
                {"returns", {{1, 1.3, -0.1}, {0.1, 1.3}}}};
  Json out = evaluate("ppo", input);
  EXPECT_NEAR(out["loss"], -0.3684328010417947, 1e-12);
  EXPECT_NEAR(out["metrics"]["loss/value_avg"], 0.334, 1e-12);
  EXPECT_NEAR(out["metrics"]["val/clipfrac_avg"], 0.2, 1e-15);
  const std::vector<std::vector<double>> kSlopes = {{-0.016, 0, -0.006}, {0.018, -0.024}};
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t t = 0; t < kSlopes[i].size(); ++t) {
      EXPECT_NEAR(out["grads"]["values"][i][t], kSlopes[i][t], 1e-15);
    }
  }
  input["vf_coef"] = 0;
  EXPECT_NEAR(loss_of("ppo", input), -0.4018328010417947, 1e-12);
  input["vf_coef"] = 0.1;
  input["value_clip"] = 0;  // the squares themselves
  EXPECT_NEAR(evaluate("ppo", input)["metrics"]["loss/value_avg"], 0.314, 1e-12);
  input.erase("returns");
  expect_error(ErrorKind::kInput, {"returns is missing"}, [&] { evaluate("ppo", input); });
  Json grpo = {{"logps", {{-1}}}, {"advantages", {1}}, {"values", {{0}}}, {"returns", {{0}}}};
  expect_error(ErrorKind::kInput, {"is no field of grpo"}, [&] { evaluate("grpo", grpo); });
}

TEST(Objectives, DistillationGivesTheGoldenNumbers) {
  Json input = {{"student_logits", {{{1, .5, -1, 0}}}}, {"teacher_logits", {{{2, 0, -.5, .3}}}}};
  auto expect = [&](const char* divergence, double temperature, double loss) {
    input["divergence"] = divergence;
    input["temperature"] = temperature;
    EXPECT_NEAR(loss_of("distill", input), loss, 1e-12) << divergence;
  };
  expect("forward_kl", 1, 0.14438066252219034);
  expect("reverse_kl", 1, 0.17534796685681536);
  expect("jsd", 1, 0.03865982049281461);
  expect("forward_kl", 2, 0.04073658531964905);
  expect("reverse_kl", 2, 0.0431265529027376);
  expect("jsd", 2, 0.010412644712790015);
  input["temperature_squared"] = true;
  expect("forward_kl", 2, 0.1629463412785962);
  input["top_k"] = 2;
  input["tail"] = "ghost";
  expect("forward_kl", 1, 0.12809445669014138);
  input["tail"] = "renormalise";
  expect("forward_kl", 1, 0.03734997257348249);
}

Json golden_cases() {
  return Json::parse(read_file(BEV_SOURCE_DIR "/tests/golden/objectives/cases.json"))["cases"];
}

void expect_near(const Json& actual, const Json& expected, double tolerance,
                 const std::string& what) {
  if (expected.is_array() || expected.is_object()) {
    for (const auto& [key, value] : expected.items()) {
      const Json& other = expected.is_array() ? actual.at(std::stoul(key)) : actual.at(key);
      expect_near(other, value, tolerance, what + " " + key);
    }
    return;
  }
  ASSERT_TRUE(actual.is_number()) << what;
  double wanted = expected.get<double>();
  EXPECT_NEAR(actual.get<double>(), wanted, tolerance * std::max(1.0, std::abs(wanted))) << what;
}

TEST(Objectives, AgreeWithTorch) {
  int number = 0;
  for (const Json& one : golden_cases()) {
    std::string name = one["objective"];
    Json actual = evaluate(name, one["input"]);
    expect_near(actual, one["expected"], 1e-12, name + " " + std::to_string(number++));
  }
}

// Calls visit(number) for every number within a value.
template <class Visit>
void each_number(Json& value, const Visit& visit) {
  if (value.is_number()) return visit(value);
  for (Json& part : value) each_number(part, visit);
}

TEST(Objectives, GradientsAreFiniteDifferences) {
  for (const Json& one : golden_cases()) {
    std::string name = one["objective"];
    // Their ratios are constants where nothing else is known.
    bool constant =
        one["input"].contains("logps") && (name == "cispo" || !one["input"].contains("old_logps"));
    if (constant || std::abs(one["expected"]["loss"].get<double>()) > 1e3) continue;
    Json input = one["input"], result = evaluate(name, input);
    for (auto& [field, gradient] : result["grads"].items()) {
      std::vector<double> slopes;
      each_number(gradient, [&](Json& value) { slopes.push_back(value); });
      std::size_t at = 0;
      each_number(input[field], [&](Json& value) {
        double x = value, step = 1e-5 * std::max(1.0, std::abs(x));
        value = x + step;
        double more = loss_of(name, input);
        value = x - step;
        double less = loss_of(name, input);
        value = x;
        EXPECT_NEAR(slopes.at(at), (more - less) / (2 * step), 1e-6) << name << " " << field;
        ++at;
      });
      EXPECT_EQ(at, slopes.size());
    }
  }
}

TEST(Objectives, KeepFiniteWhatIsFinite) {
  for (const ObjectiveRule& rule : objective_rules()) {
    if (rule.kind != ObjectiveKind::kPair) continue;
    for (double far : {-2e5, -1e4, 0.0, -1e-9}) {
      Json input = golden_pair();
      input["policy_chosen_logps"] = {far};
      for (double other : {-2e5, -3.0, 0.0}) {
        input["policy_rejected_logps"] = {other};
        Json out = evaluate(std::string(rule.name), input);
        EXPECT_TRUE(out["loss"].is_number()) << rule.name << " " << far << " " << other;
        EXPECT_TRUE(out["grads"]["policy_chosen_logps"][0].is_number()) << rule.name << " " << far;
      }
    }
  }
  // Tokens that count for nothing may hold anything; rewards that are all equal teach nothing.
  Json input = {{"logps", {{-1, 900}, {-2, -900}}},
                {"old_logps", {{-1, -900}, {-2, nullptr}}},
                {"mask", {{true, false}, {1, 0}}},
                {"rewards", {0.1, 0.1}},
                {"groups", {0, 0}}};
  for (const char* name : {"grpo", "rloo", "gspo", "cispo", "reinforce++"}) {
    Json out = evaluate(name, input);
    EXPECT_EQ(out["loss"], 0.0) << name;
    EXPECT_EQ(out["grads"]["logps"], Json::parse("[[0.0, 0.0], [0.0, 0.0]]")) << name;
  }
}

TEST(Objectives, PartsOfABatchAddUpByTheirWeights) {
  PairBatch all{{-3, -9, -4}, {-5, -2, -6}, {-4, -4, -4}, {-5, -5, -5}, {}, {}};
  PairBatch one{{-3}, {-5}, {-4}, {-5}, {}, {}},
      two{{-9, -4}, {-2, -6}, {-4, -4}, {-5, -5}, {}, {}};
  PairValue whole = pair_objective({}, all), first = pair_objective({}, one),
            second = pair_objective({}, two);
  EXPECT_NEAR(whole.loss * whole.weight, first.loss * first.weight + second.loss * second.weight,
              1e-14);
  for (std::size_t i = 0; i < whole.metrics.size(); ++i) {
    EXPECT_NEAR(whole.metrics[i].sum, first.metrics[i].sum + second.metrics[i].sum, 1e-14);
    EXPECT_EQ(whole.metrics[i].weight, first.metrics[i].weight + second.metrics[i].weight);
  }
}

TEST(Objectives, RefuseWrongInputByName) {
  auto refuses = [](const char* name, const Json& change, const std::string& message) {
    Json input = golden_pair();
    for (const auto& [key, value] : change.items()) {
      if (value.is_null()) {
        input.erase(key);
      } else {
        input[key] = value;
      }
    }
    expect_error(ErrorKind::kInput, {message}, [&] { evaluate(name, input); });
  };
  refuses("dpo", {{"betta", 1}}, "in.json: 'betta' is no field of dpo; did you mean beta?");
  refuses("dpo", {{"rewards", {1}}}, "'rewards' is no field of dpo");
  refuses("dpo", {{"beta", -1}}, "beta: -1 is out of range");
  refuses("dpo", {{"beta", {1}}}, "beta: expected one value, got array");
  refuses("dpo", {{"policy_rejected_logps", nullptr}}, "policy_rejected_logps is missing");
  refuses("dpo", {{"ref_chosen_logps", {1, 2}}},
          "ref_chosen_logps has 2 entries and policy_chosen_logps 1");
  refuses("dpo", {{"policy_chosen_logps", {"a"}}},
          "policy_chosen_logps entry 0: expected a number, got string");
  refuses("ipo", {{"chosen_lengths", nullptr}}, "chosen_lengths is missing");
  refuses("ipo", {{"chosen_lengths", {0}}}, "a completion has at least 1 token");
  refuses("robust", {{"label_smoothing", 0.5}}, "robust needs less than 0.5");
  refuses("exo_pair", {{"label_smoothing", 0}}, "exo_pair needs more");
  Json policy = {{"logps", {{-1, -2}}}, {"advantages", {1}}};
  auto refuses_policy = [&](const char* key, const Json& value, const std::string& message) {
    Json input = policy;
    input[key] = value;
    expect_error(ErrorKind::kInput, {message}, [&] { evaluate("grpo", input); });
  };
  refuses_policy("mask", {{1}}, "mask entry 0 has 1 tokens and that of logps 2");
  refuses_policy("beta", 0.1, "ref_logps is missing");
  refuses_policy("correction", "token_mask", "sampling_logps is missing");
  refuses_policy("aggregation", "seq-mean-token-sum-norm", "max_completion_length is missing");
  refuses_policy("aggregation", "mean", "aggregation: 'mean' is not one of token-mean");
  refuses_policy("rewards", {1}, "advantages exclude rewards");
  expect_error(ErrorKind::kConfig, {"'dpi' is not one of dpo, ipo"},
               [&] { find_objective("dpi"); });
}

}  // namespace
}  // namespace bev
