#include "posttrain/objective_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace bev {

namespace {

using Json = nlohmann::ordered_json;

Json result(const ObjectiveRule& rule, const ObjectiveValue& value, Json gradients) {
  Json out;
  out["objective"] = rule.name;
  out["loss"] = value.loss;
  out["losses"] = value.losses;
  Json& metrics = out["metrics"] = Json::object();
  for (const ObjectiveMetric& metric : value.metrics) metrics[metric.name] = metric.value();
  out["grads"] = std::move(gradients);
  return out;
}

}  // namespace

std::string json_of(const ObjectiveRule& rule, const PairValue& value) {
  Json gradients;
  gradients["policy_chosen_logps"] = value.chosen;
  gradients["policy_rejected_logps"] = value.rejected;
  if (value.chosen_nll != 0) gradients["chosen_nll"] = value.chosen_nll;
  return result(rule, value, std::move(gradients)).dump();
}

std::string json_of(const ObjectiveRule& rule, const KtoValue& value) {
  Json gradients;
  gradients["policy_logps"] = value.policy;
  return result(rule, value, std::move(gradients)).dump();
}

std::string json_of(const ObjectiveRule& rule, const RewardValue& value) {
  Json gradients;
  gradients["chosen_rewards"] = value.chosen;
  gradients["rejected_rewards"] = value.rejected;
  return result(rule, value, std::move(gradients)).dump();
}

std::string json_of(const ObjectiveRule& rule, const PolicyValue& value) {
  Json gradients;
  gradients["logps"] = value.logps;
  if (!value.values.empty()) gradients["values"] = value.values;
  Json out = result(rule, value, std::move(gradients));
  out["token_loss"] = value.token_loss;
  bool by_row =
      std::ranges::all_of(value.advantages, [](const Numbers& row) { return row.size() == 1; });
  Json& advantages = out["advantages"] = Json::array();
  for (const Numbers& row : value.advantages) {
    advantages.push_back(by_row ? Json(row[0]) : Json(row));
  }
  return out.dump();
}

std::string json_of(const ObjectiveRule& rule, const GaeValue& value, bool alone) {
  Json out = result(rule, {}, Json::object());
  out["loss"] = nullptr;
  out["advantages"] = alone ? Json(value.advantages[0]) : Json(value.advantages);
  out["returns"] = alone ? Json(value.returns[0]) : Json(value.returns);
  return out.dump();
}

std::string json_of(const ObjectiveRule& rule, const DistillValue& value) {
  Json gradients;
  gradients["student_logits"] = value.student;
  return result(rule, value, std::move(gradients)).dump();
}

}  // namespace bev
