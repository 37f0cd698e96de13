// Results of objectives as text of JSON: {"objective", "loss", "losses", "metrics", "grads":
// {field:
// ..}}. Numbers that are not finite become null.
#pragma once

#include <string>

#include "posttrain/objectives.h"

namespace bev {

std::string json_of(const ObjectiveRule& rule, const PairValue& value);
std::string json_of(const ObjectiveRule& rule, const KtoValue& value);
std::string json_of(const ObjectiveRule& rule, const RewardValue& value);
// Also "token_loss" and "advantages", which are numbers of rows if each has one.
std::string json_of(const ObjectiveRule& rule, const PolicyValue& value);
// "advantages" and "returns", of the first row only if it was given alone.
std::string json_of(const ObjectiveRule& rule, const GaeValue& value, bool alone);
std::string json_of(const ObjectiveRule& rule, const DistillValue& value);

}  // namespace bev
