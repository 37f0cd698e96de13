// The objectives of post-training by name. An algorithm is a row of settings: a preference loss,
// KTO, a reward loss, a policy gradient, GAE or a distillation with its defaults, which files and
// flags override. posttrain/objectives.h has the mathematics.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

class FieldList;

// The loss of a pair as a function of a = log(policy / reference) of the chosen completion and b of
// the rejected one.
enum class PairFormula : std::uint8_t {
  kLogistic,    // -w log sigmoid(beta (a - b) - gamma) - w' log sigmoid(-beta (a - b) + gamma)
  kHinge,       // SLiC
  kSquared,     // IPO
  kExo,         // reverse KL to smoothed preferences
  kNca,         // noise contrastive alignment
  kBco,         // binary classifier, without a running mean
  kSppo,        // SPPO, hard labels
  kApoZero,     // anchored: chosen up, rejected down
  kApoDown,     // anchored: both down, the rejected one more
  kDiscovered,  // DiscoPOP
  kOddsRatio,   // ORPO, of mean log-probabilities
};
// How label_smoothing e gives the two weights of the logistic formula.
enum class Smoothing : std::uint8_t {
  kNone,    // 1 and 0
  kMixed,   // 1 - e and e: cDPO
  kRobust,  // (1 - e) / (1 - 2 e) and -e / (1 - 2 e): rDPO
};

// The likelihood of the chosen completion that is added to the loss.
enum class Likelihood : std::uint8_t { kNone, kWhole, kCpoAlpha };
// The tokens it is the mean of.
enum class NllTokens : std::uint8_t { kCompletion, kAll };

struct PairSettings {
  PairFormula formula = PairFormula::kLogistic;
  Smoothing smoothing = Smoothing::kNone;
  bool reference = true;  // false: a and b are those of the policy alone
  bool means = false;     // a and b are divided by the lengths of the completions
  Likelihood likelihood = Likelihood::kNone;
  NllTokens nll_tokens = NllTokens::kCompletion;
  double beta = 0.1;
  double label_smoothing = 0;
  double gamma = 0;  // margin that the policy's rewards must have
  double cpo_alpha = 1;

  // Factor of the likelihood.
  double nll_factor() const {
    return likelihood == Likelihood::kNone ? 0 : likelihood == Likelihood::kWhole ? 1 : cpo_alpha;
  }
  void fields(FieldList& list);
};

struct KtoSettings {
  double beta = 0.1, desirable_weight = 1, undesirable_weight = 1;

  void fields(FieldList& list);
};

struct RewardSettings {
  double center_rewards_coefficient = 0;

  void fields(FieldList& list);
};

enum class KlEstimate : std::uint8_t { kK1, kK2, kK3 };
enum class Aggregation : std::uint8_t {
  kTokenMean,            // over all tokens of the batch
  kSeqMeanTokenMean,     // mean of each row, then over all rows, those without tokens too
  kSeqMeanTokenSum,      // sum of each row, then the mean over all rows
  kSeqMeanTokenSumNorm,  // the same, divided by max_completion_length
};
enum class Spread : std::uint8_t { kSample, kPopulation, kNone };
// What is done about samplers whose log-probabilities differ from the trainer's.
enum class Correction : std::uint8_t {
  kNone,
  kTokenTruncate,
  kTokenMask,
  kSequenceTruncate,
  kSequenceMask
};

struct PolicySettings {
  bool sequence_ratio = false;  // GSPO: the ratio is the geometric mean over the row
  bool clips_weight = false;    // CISPO: the ratio, within [epsilon_low, epsilon_high], is a weight
  bool whitens = false;         // REINFORCE++: rewards are whitened over all tokens of the batch
  bool critic = false;          // PPO: a head of the model predicts returns
  // The ratio is clipped to [1 - epsilon_low, 1 + epsilon_high].
  double epsilon_low = 0.2, epsilon_high = 0.2;
  double dual_clip = 0;  // largest loss of a negative advantage, times that; 0: none
  double delta = 0;      // upper bound of the unclipped ratio; 0: none
  double beta = 0;       // factor of the KL divergence from the reference
  KlEstimate kl = KlEstimate::kK3;
  Aggregation aggregation = Aggregation::kTokenMean;
  std::int64_t max_completion_length = 0;
  Spread advantage_std = Spread::kSample;
  double advantage_eps = 1e-4;
  bool leave_one_out = false;  // the baseline of a row is the mean of the others of its group
  Correction correction = Correction::kNone;
  double correction_min = 0, correction_max = 3;
  // The critic's: factor of its loss, and how far a value may move; 0: any distance.
  double vf_coef = 0.1, value_clip = 0.2;

  // Whether advantages compare the completions of a group.
  bool grouped() const { return !whitens && !critic; }
  void fields(FieldList& list);
};

// Generalised advantage estimation.
struct GaeSettings {
  double gamma = 1, lambda = 0.95;
  bool whiten = false;
  bool kl_in_reward = false;  // of PPO: the KL estimate is part of the rewards, not of the loss

  void fields(FieldList& list);
};

enum class Divergence : std::uint8_t { kForwardKl, kReverseKl, kJsd };
enum class Tail : std::uint8_t { kDrop, kRenormalise, kGhost };

struct DistillSettings {
  Divergence divergence = Divergence::kForwardKl;
  double jsd_beta = 0.5;  // weight of the teacher in the mixture; 0 and 1: forward and reverse KL
  double temperature = 1;
  bool temperature_squared = false;  // the divergence is multiplied by temperature^2
  std::int64_t top_k = 0;            // of the teacher's tokens; 0: all
  Tail tail = Tail::kDrop;           // what becomes of the others
  double alpha = 1;                  // weight of the divergence; the rest is cross entropy

  void fields(FieldList& list);
};

enum class ObjectiveKind : std::uint8_t { kPair, kKto, kReward, kPolicy, kGae, kDistill };

struct ObjectiveRule {
  std::string_view name;
  ObjectiveKind kind = ObjectiveKind::kPair;
  PairSettings pair = {};
  PolicySettings policy = {};
  KtoSettings kto = {};
  RewardSettings reward = {};
  GaeSettings gae = {};
  DistillSettings distill = {};

  // The settings that a user may give.
  void fields(FieldList& list);
  // What is wrong with the settings together; "" if nothing.
  std::string problem() const;
  // Whether log-probabilities of a reference model matter.
  bool uses_reference() const;
};

std::span<const ObjectiveRule> objective_rules();
std::vector<std::string> objective_names();
// Throws Error(kConfig) if there is none of this name.
ObjectiveRule find_objective(std::string_view name);

}  // namespace bev
