// Compares the weights of ranks that should hold the same ones: a fault of memory or of a link
// lets them drift apart without a word.
#pragma once

#include <string>

namespace bev {

class RankModel;

// Hashes the weights of this rank and compares them over the ranks that hold copies (data and
// context parallelism; with ZeRO-3 the copies of a shard). Returns which rank differs in which
// weight, the same text on every rank; "": all agree. Collective.
std::string find_differing_weights(RankModel& model);

}  // namespace bev
