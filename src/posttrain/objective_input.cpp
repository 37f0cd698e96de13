#include "posttrain/objective_input.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/fields.h"
#include "base/json_check.h"
#include "posttrain/objective_text.h"
#include "posttrain/objectives.h"

namespace bev {

namespace {

// The inputs of an objective. Every list that is read must be as long as the first one.
class InputFields {
 public:
  explicit InputFields(const JsonPlace& object) : object_(object) {}

  bool has(std::string_view name) const { return object_.has(name); }
  double number(std::string_view name) const {
    return has(name) ? object_.member(name).number() : 0;
  }
  // Empty if it is missing.
  Numbers numbers(std::string_view name, const NumberRule& rule = {}) {
    if (!has(name)) return {};
    Numbers out = object_.member(name).numbers(rule);
    check_length(name, out.size());
    return out;
  }
  Numbers needed(std::string_view name, const NumberRule& rule = {}) {
    need(name);
    return numbers(name, rule);
  }
  // A list of its own length.
  Numbers free_numbers(std::string_view name) const {
    return has(name) ? object_.member(name).numbers() : Numbers();
  }
  // One list of numbers per row, as long as the first that was read.
  NumberRows rows(std::string_view name, const NumberRule& rule = {}) {
    if (!has(name)) return {};
    NumberRows out;
    for (const JsonPlace& row : object_.member(name).entries("rows")) {
      out.push_back(row.numbers(rule));
    }
    check_length(name, out.size());
    check_shape(name, out);
    return out;
  }
  NumberRows needed_rows(std::string_view name) {
    need(name);
    return rows(name);
  }
  // Rows of tokens of numbers.
  std::vector<NumberRows> tables(std::string_view name) {
    need(name);
    std::vector<NumberRows> out;
    for (const JsonPlace& row : object_.member(name).entries("rows")) {
      NumberRows& table = out.emplace_back();
      for (const JsonPlace& token : row.entries("tokens")) table.push_back(token.numbers());
    }
    check_length(name, out.size());
    check_shape(name, out);
    return out;
  }
  void need(std::string_view name) const {
    BEV_CHECK(has(name), ErrorKind::kInput, object_.where(), ": ", name, " is missing");
  }
  const std::string& where() const { return object_.where(); }

 private:
  void check_length(std::string_view name, std::size_t length) {
    BEV_CHECK(length > 0, ErrorKind::kInput, object_.where(), ": ", name, " is empty");
    if (first_.empty()) first_ = name, length_ = length;
    BEV_CHECK(length == length_, ErrorKind::kInput, object_.where(), ": ", name, " has ", length,
              " entries and ", first_, " ", length_);
  }
  template <class Rows>
  void check_shape(std::string_view name, const Rows& rows) {
    if (lengths_.empty()) {
      for (const auto& row : rows) lengths_.push_back(row.size());
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      BEV_CHECK(rows[i].size() == lengths_[i], ErrorKind::kInput, object_.where(), ": ", name,
                " entry ", i, " has ", rows[i].size(), " tokens and that of ", first_, " ",
                lengths_[i]);
    }
  }

  const JsonPlace& object_;
  std::string first_;
  std::size_t length_ = 0;
  std::vector<std::size_t> lengths_;  // of rows
};

constexpr std::string_view kPairFields[] = {
    "policy_chosen_logps", "policy_rejected_logps", "ref_chosen_logps", "ref_rejected_logps",
    "chosen_lengths",      "rejected_lengths",      "chosen_nll"};
constexpr std::string_view kKtoFields[] = {"policy_logps", "ref_logps", "policy_kl_logps",
                                           "ref_kl_logps", "labels"};
constexpr std::string_view kRewardFields[] = {"chosen_rewards", "rejected_rewards", "margins"};
constexpr std::string_view kPolicyFields[] = {"logps", "old_logps",  "ref_logps", "sampling_logps",
                                              "mask",  "advantages", "rewards",   "groups"};
constexpr std::string_view kCriticFields[] = {"logps",  "old_logps",  "ref_logps", "sampling_logps",
                                              "mask",   "advantages", "rewards",   "groups",
                                              "values", "old_values", "returns"};
constexpr std::string_view kGaeFields[] = {"rewards", "values", "mask"};
constexpr std::string_view kDistillFields[] = {"student_logits", "teacher_logits", "labels",
                                               "mask"};

std::span<const std::string_view> fields_of(const ObjectiveRule& rule) {
  switch (rule.kind) {
    case ObjectiveKind::kPair:
      return kPairFields;
    case ObjectiveKind::kKto:
      return kKtoFields;
    case ObjectiveKind::kReward:
      return kRewardFields;
    case ObjectiveKind::kPolicy:
      if (rule.policy.critic) return kCriticFields;
      return kPolicyFields;
    case ObjectiveKind::kGae:
      return kGaeFields;
    case ObjectiveKind::kDistill:
      return kDistillFields;
  }
  return {};
}

std::string pair_json(const ObjectiveRule& rule, InputFields& in) {
  PairBatch batch;
  batch.policy_chosen = in.needed("policy_chosen_logps");
  batch.policy_rejected = in.needed("policy_rejected_logps");
  batch.ref_chosen = in.numbers("ref_chosen_logps");
  batch.ref_rejected = in.numbers("ref_rejected_logps");
  batch.chosen_lengths = in.numbers("chosen_lengths");
  batch.rejected_lengths = in.numbers("rejected_lengths");
  batch.chosen_nll = in.number("chosen_nll");
  for (const char* name : {"chosen_lengths", "rejected_lengths"}) {
    if (rule.pair.means) in.need(name);
    for (double length : in.numbers(name)) {
      BEV_CHECK(length >= 1, ErrorKind::kInput, in.where(), ": ", name, " has ", length,
                "; a completion has at least 1 token");
    }
  }
  return json_of(rule, pair_objective(rule.pair, batch));
}

std::string kto_json(const ObjectiveRule& rule, InputFields& in) {
  KtoBatch batch;
  batch.policy = in.needed("policy_logps");
  batch.ref = in.numbers("ref_logps");
  batch.labels = in.needed("labels", {.truths = true});
  in.need("policy_kl_logps");
  batch.policy_kl = in.free_numbers("policy_kl_logps");
  batch.ref_kl = in.free_numbers("ref_kl_logps");
  BEV_CHECK(batch.ref_kl.empty() || batch.ref_kl.size() == batch.policy_kl.size(),
            ErrorKind::kInput, in.where(), ": ref_kl_logps has ", batch.ref_kl.size(),
            " entries and policy_kl_logps ", batch.policy_kl.size());
  return json_of(rule, kto_objective(rule.kto, batch));
}

std::string reward_json(const ObjectiveRule& rule, InputFields& in) {
  RewardBatch batch;
  batch.chosen = in.needed("chosen_rewards");
  batch.rejected = in.needed("rejected_rewards");
  batch.margins = in.numbers("margins");
  return json_of(rule, reward_objective(rule.reward, batch));
}

NumberRows ones_like(const NumberRows& rows) {
  NumberRows out;
  for (const Numbers& row : rows) out.emplace_back(row.size(), 1.0);
  return out;
}

void read_rewards(const ObjectiveRule& rule, const JsonPlace& object, InputFields& in,
                  PolicyBatch& batch) {
  if (in.has("advantages")) {
    BEV_CHECK(!in.has("rewards"), ErrorKind::kInput, in.where(),
              ": advantages exclude rewards; keep one");
    if (object.member("advantages").entries("rows")[0].is_list()) {
      batch.advantages = in.rows("advantages");
      return;
    }
    for (double advantage : in.needed("advantages")) batch.advantages.push_back({advantage});
    return;
  }
  BEV_CHECK(in.has("rewards"), ErrorKind::kInput, in.where(),
            ": advantages, or rewards and groups, are missing");
  batch.rewards = in.needed("rewards", {.nulls = true});
  if (!rule.policy.whitens) in.need("groups");
  for (double group : in.numbers("groups")) {
    BEV_CHECK(group == std::floor(group) && std::abs(group) < 1e15, ErrorKind::kInput, in.where(),
              ": groups has ", group, ", which is no whole number");
    batch.groups.push_back(static_cast<std::int64_t>(group));
  }
}

std::string policy_json(const ObjectiveRule& rule, const JsonPlace& object, InputFields& in) {
  PolicyBatch batch;
  batch.logps = in.needed_rows("logps");
  batch.old_logps = in.rows("old_logps", {.nulls = true});
  batch.ref_logps = in.rows("ref_logps", {.nulls = true});
  batch.sampling_logps = in.rows("sampling_logps", {.nulls = true});
  batch.mask = in.has("mask") ? in.rows("mask", {.truths = true}) : ones_like(batch.logps);
  read_rewards(rule, object, in, batch);
  for (const char* name : {"values", "old_values", "returns"}) {
    if (!in.has(name)) continue;
    in.need("values");
    in.need("returns");
  }
  batch.values = in.rows("values", {.nulls = true});
  batch.old_values = in.rows("old_values", {.nulls = true});
  batch.returns = in.rows("returns", {.nulls = true});
  const PolicySettings& settings = rule.policy;
  if (settings.beta > 0) in.need("ref_logps");
  if (settings.correction != Correction::kNone) in.need("sampling_logps");
  BEV_CHECK(settings.aggregation != Aggregation::kSeqMeanTokenSumNorm ||
                settings.max_completion_length > 0,
            ErrorKind::kInput, in.where(),
            ": max_completion_length is missing; seq-mean-token-sum-norm divides by it");
  return json_of(rule, policy_objective(settings, batch));
}

// Rows, or one row.
NumberRows rows_or_row(const JsonPlace& object, InputFields& in, std::string_view name, bool one) {
  return one ? NumberRows{object.member(name).numbers({.truths = true})}
             : in.rows(name, {.truths = true});
}

std::string gae_json(const ObjectiveRule& rule, const JsonPlace& object, InputFields& in) {
  in.need("rewards");
  in.need("values");
  bool one = !object.member("rewards").entries("rows")[0].is_list();
  NumberRows rewards = rows_or_row(object, in, "rewards", one);
  NumberRows values = rows_or_row(object, in, "values", one);
  NumberRows mask = in.has("mask") ? rows_or_row(object, in, "mask", one) : ones_like(rewards);
  BEV_CHECK(values[0].size() == rewards[0].size() && mask[0].size() == rewards[0].size(),
            ErrorKind::kInput, in.where(), ": rewards, values and mask have ", rewards[0].size(),
            ", ", values[0].size(), " and ", mask[0].size(), " tokens");
  return json_of(rule, gae(rule.gae, rewards, values, mask), one);
}

std::string distill_json(const ObjectiveRule& rule, InputFields& in) {
  DistillBatch batch;
  batch.student = in.tables("student_logits");
  batch.teacher = in.tables("teacher_logits");
  NumberRows each;
  for (const NumberRows& row : batch.student) each.emplace_back(row.size(), 1.0);
  batch.mask = in.has("mask") ? in.rows("mask", {.truths = true}) : each;
  if (rule.distill.alpha < 1) in.need("labels");
  batch.labels = in.rows("labels");
  for (std::size_t b = 0; b < batch.student.size(); ++b) {
    for (std::size_t s = 0; s < batch.student[b].size(); ++s) {
      std::size_t classes = batch.student[b][s].size(), others = batch.teacher[b][s].size();
      BEV_CHECK(classes == others && classes > 0, ErrorKind::kInput, in.where(), ": row ", b,
                " token ", s, " of student_logits has ", classes,
                " logits and that of teacher_logits ", others);
      double label = batch.labels.empty() ? -1 : batch.labels[b][s];
      BEV_CHECK(label == std::floor(label) && label < static_cast<double>(classes),
                ErrorKind::kInput, in.where(), ": labels row ", b, " column ", s, ": ", label,
                " is no token of ", classes);
    }
  }
  return json_of(rule, distill_objective(rule.distill, batch));
}

}  // namespace

void read_settings(ObjectiveRule& rule, const JsonPlace& object,
                   std::span<const std::string_view> others) {
  BEV_CHECK(object.is_object(), ErrorKind::kInput, object.where(), ": expected an object, got ",
            object.type_name());
  FieldList list;
  rule.fields(list);
  for (const std::string& name : object.names()) {
    if (std::ranges::find(others, name) != others.end()) continue;
    std::string flag = name;
    std::ranges::replace(flag, '_', '-');
    Field* field = name.find('-') == std::string::npos ? list.find(flag) : nullptr;
    if (field == nullptr) {
      std::vector<std::string> known(others.begin(), others.end());
      for (const auto& entry : list.entries()) {
        known.push_back(entry->field.name());
        std::ranges::replace(known.back(), '-', '_');
      }
      std::string nearest = nearest_name(name, known);
      BEV_FAIL(ErrorKind::kInput, object.where(), ": ", quote(name), " is no field of ", rule.name,
               nearest.empty() ? concat("; there are ", join(known, ", "))
                               : concat("; did you mean ", nearest, "?"));
    }
    if (!object.has(name)) continue;  // null
    std::string problem = field->set_text(object.member(name).scalar_text());
    BEV_CHECK(problem.empty(), ErrorKind::kInput, object.where(), ": ", name, ": ", problem);
  }
  std::string problem = rule.problem();
  BEV_CHECK(problem.empty(), ErrorKind::kInput, object.where(), ": ", problem);
}

std::string objective_json(ObjectiveRule rule, const JsonPlace& input) {
  read_settings(rule, input, fields_of(rule));
  InputFields in(input);
  switch (rule.kind) {
    case ObjectiveKind::kPair:
      return pair_json(rule, in);
    case ObjectiveKind::kKto:
      return kto_json(rule, in);
    case ObjectiveKind::kReward:
      return reward_json(rule, in);
    case ObjectiveKind::kPolicy:
      return policy_json(rule, input, in);
    case ObjectiveKind::kGae:
      return gae_json(rule, input, in);
    case ObjectiveKind::kDistill:
      return distill_json(rule, in);
  }
  return {};
}

}  // namespace bev
