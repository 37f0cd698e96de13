// A model and an objective that count something for metrics of a program's own, each by one line
// where the number is made.
#pragma once

#include "autograd/metrics.h"
#include "models/model.h"
#include "parallel/objective.h"

namespace bev::test {

// A decoder whose mixers add up the squares of what they get.
const Architecture* watched_architecture();
MetricSpec mixer_input_norm();

// Next-token prediction that counts the tokens without a weight.
const Objective& watched_objective();
MetricSpec masked_tokens();

}  // namespace bev::test
