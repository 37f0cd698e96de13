// A model and an objective that add to metrics declared by a program, each with one line where the
// value is computed.
#pragma once

#include "autograd/metrics.h"
#include "models/model.h"
#include "parallel/objective.h"

namespace bev::test {

// A decoder whose mixers sum the squares of their inputs.
const Architecture* watched_architecture();
MetricSpec mixer_input_norm();

// Next-token prediction that counts tokens with weight zero.
const Objective& watched_objective();
MetricSpec masked_tokens();

}  // namespace bev::test
