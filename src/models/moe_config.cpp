#include "models/moe_config.h"

#include <algorithm>

#include "base/fields.h"
#include "base/problems.h"
#include "base/text.h"
#include "models/layer_list.h"

namespace bev {

namespace {

constexpr double kMaxSize = 1 << 24;

// `marks` is the value of --moe-layer-freq.
void layer_problems(const std::vector<std::int64_t>& marks, std::int64_t num_layers,
                    std::vector<std::string>& out) {
  auto count = static_cast<std::int64_t>(marks.size());
  bool frequency = count == 1 && num_layers != 1;
  if (count == 0 || (frequency && marks[0] < 1) ||
      (!frequency && std::ranges::any_of(marks, [](auto one) { return one > 1; }))) {
    out.push_back(
        "--moe-layer-freq: give one N >= 1, or a 1 (experts) or 0 (dense) for each layer");
  } else if (!frequency && count != num_layers) {
    out.push_back(
        concat("--moe-layer-freq: lists ", count, " layers, --num-layers is ", num_layers));
  } else if (!frequency && std::ranges::count(marks, 1) == 0) {
    out.push_back(
        "--moe-layer-freq: no layer has experts; mark one by 1, or leave --num-experts out");
  }
}

void group_problems(const MoeConfig& moe, std::vector<std::string>& out) {
  if (moe.num_groups <= 1) {
    if (moe.group_topk > 1) {
      out.push_back(concat("--moe-router-group-topk: ", moe.group_topk,
                           " of one group; give --moe-router-num-groups too"));
    }
    return;
  }
  if (moe.num_experts % moe.num_groups != 0) {
    out.push_back(concat("--moe-router-num-groups: ", moe.num_groups,
                         " does not divide --num-experts ", moe.num_experts, "; use ",
                         divisors_text(moe.num_experts)));
    return;
  }
  std::int64_t size = moe.num_experts / moe.num_groups;
  if (moe.group_topk < 1 || moe.group_topk > moe.num_groups || moe.group_topk * size < moe.topk) {
    out.push_back(concat("--moe-router-group-topk: ", moe.group_topk, " of ", moe.num_groups,
                         " groups of ", size, " experts; give a number up to ", moe.num_groups,
                         " whose groups have --moe-router-topk ", moe.topk, " experts"));
    return;
  }
  std::int64_t scored = moe.routing().group_experts;
  if (scored < 1 || scored > size) {
    out.push_back(concat("--moe-router-group-score-experts: ", scored,
                         " experts make the score of a group of ", size,
                         "; by default it is --moe-router-topk / --moe-router-group-topk"));
  }
}

}  // namespace

void MoeConfig::fields(FieldList& list) {
  list.section(kSection);
  list.add("num-experts", num_experts, "experts of a layer; 0: all layers are dense")
      .min(0)
      .limit(1 << 16);
  list.add("moe-layer-freq", layer_freq,
           "N: layers 0, N, 2N, ... have experts; or a list with 1 (experts) or 0 (dense) for each "
           "layer, also as ([0]*3+[1]*58)")
      .min(0)
      .limit(1 << 20)
      .reads(read_layer_list);
  list.add("moe-ffn-hidden-size", ffn_hidden_size, "inner width of an expert")
      .min(0)
      .limit(kMaxSize)
      .defaults_to("ffn-hidden-size");
  list.add("moe-router-topk", topk, "experts that a token chooses").min(1).limit(1 << 16);
  list.add("moe-router-score-function", score_function,
           {{"softmax", RouterScore::kSoftmax},
            {"sigmoid", RouterScore::kSigmoid},
            {"sqrtsoftplus", RouterScore::kSqrtSoftplus}},
           "what makes scores of the router's logits");
  list.add("moe-router-pre-softmax", pre_softmax,
           "softmax over all experts before the choice, not over the chosen ones");
  list.add("moe-router-norm-topk-prob", norm_topk_prob,
           "sigmoid, sqrtsoftplus: scores of the chosen experts are divided by their sum");
  list.add("moe-router-norm-single-prob", norm_single_prob,
           "also where --moe-router-topk is 1: every probability is 1 then, and not the score");
  list.add("moe-router-topk-scaling-factor", scaling_factor, "factor of the probabilities")
      .above(0);
  list.add("moe-router-num-groups", num_groups, "groups of experts of which a token may use some")
      .min(0)
      .limit(1 << 16);
  list.add("moe-router-group-topk", group_topk, "how many of them").min(0).limit(1 << 16);
  list.add("moe-router-group-score-experts", group_score_experts,
           "best experts of a group whose scores are its score")
      .min(0)
      .limit(1 << 16)
      .defaults_to("moe-router-topk / moe-router-group-topk");
  list.add("moe-router-bias", router_bias, "the linear that makes the logits has a bias");
  list.add("moe-router-enable-expert-bias", expert_bias,
           "choose by score + bias, where the bias follows the load of each expert");
  list.add("moe-apply-probs-on-input", scale_input,
           "probabilities multiply what experts read, not what they return");
  list.add("moe-shared-expert-intermediate-size", shared_expert_size,
           "inner width of the MLP that every token passes besides; 0: none")
      .min(0)
      .limit(kMaxSize);
  list.add("moe-shared-expert-gate", shared_expert_gate,
           "its result is multiplied by the sigmoid of a linear of the token");
}

bool MoeConfig::in_layer(std::int64_t layer) const {
  if (!any() || layer_freq.empty()) return false;
  if (layer_freq.size() == 1) return layer_freq[0] > 0 && layer % layer_freq[0] == 0;
  return layer_freq[static_cast<std::size_t>(layer)] != 0;
}

RoutingRule MoeConfig::routing() const {
  RoutingRule rule;
  rule.topk = topk;
  rule.score = score_function;
  rule.pre_softmax = pre_softmax;
  rule.normalize = norm_topk_prob && (topk > 1 || norm_single_prob);
  rule.scaling = scaling_factor;
  rule.by_score = expert_bias;
  if (num_groups > 1) {
    rule.groups = num_groups;
    rule.group_topk = group_topk;
    rule.group_experts =
        group_score_experts > 0
            ? group_score_experts
            : std::max<std::int64_t>(topk / std::max<std::int64_t>(group_topk, 1), 1);
  }
  return rule;
}

std::vector<std::string> MoeConfig::problems(std::int64_t num_layers) const {
  std::vector<std::string> out;
  if (!any()) return out;
  if (topk > num_experts) {
    out.push_back(concat("--moe-router-topk: ", topk, " of --num-experts ", num_experts,
                         "; choose at most ", num_experts));
    return out;
  }
  layer_problems(layer_freq, num_layers, out);
  if (expert_bias && score_function == RouterScore::kSoftmax && pre_softmax) {
    out.push_back(
        "--moe-router-enable-expert-bias: with softmax the probabilities are those of the chosen "
        "experts; leave --moe-router-pre-softmax out, or use sigmoid or sqrtsoftplus");
  }
  if (!norm_topk_prob && score_function == RouterScore::kSoftmax) {
    out.push_back(
        "--no-moe-router-norm-topk-prob: is for sigmoid and sqrtsoftplus; the softmax over all "
        "experts, undivided, is --moe-router-pre-softmax");
  }
  if (shared_expert_gate && shared_expert_size == 0) {
    out.push_back(
        "--moe-shared-expert-gate: there is no shared expert; give "
        "--moe-shared-expert-intermediate-size");
  }
  group_problems(*this, out);
  return out;
}

void MoeTraining::fields(FieldList& list) {
  list.section(kSection);
  list.add("moe-router-load-balancing-type", load_balancing,
           "losses that spread tokens over experts: over the micro-batch, over each sequence, over "
           "the micro-batches of the global batch so far; or sinkhorn, which balances the choice")
      .one_of({"none", "aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn"});
  list.add("moe-aux-loss-coeff", aux_loss_coeff, "their weights, one for each").min(0);
  list.add("moe-z-loss-coeff", z_loss_coeff, "weight of the loss that keeps logits small").min(0);
  list.add("moe-router-bias-update-rate", bias_update_rate,
           "by how much an expert's bias moves after each global batch")
      .min(0);
  list.add("moe-input-jitter-eps", input_jitter_eps,
           "the router's input is multiplied by random numbers in [1 - eps, 1 + eps]")
      .min(0)
      .max(1);
  list.add("moe-router-force-load-balancing", force_load_balancing,
           "random logits: all experts get the same load, for measurements of speed");
  list.add(
      "moe-router-dtype", router_dtype,
      {{"none", RouterDtype::kModel}, {"fp32", RouterDtype::kF32}, {"fp64", RouterDtype::kF64}},
      "in which the router's products are computed; none: numbers of the model's dtype, "
      "summed in fp32");
  list.add("moe-expert-capacity-factor", capacity_factor,
           "limit of the tokens that an expert takes of a micro-batch while training, over what "
           "each would have if all had as many; tokens above it go without")
      .min(0)
      .defaults_to("no limit");
  list.add("moe-token-drop-policy", drop_policy,
           {{"probs", DropPolicy::kProbs}, {"position", DropPolicy::kPosition}},
           "whom a full expert drops: the smallest probabilities, or the latest positions");
  list.add(
      "moe-pad-expert-input-to-capacity", pad_to_capacity,
      "taken for Megatron's sake, with --moe-expert-capacity-factor: padding changes no result, "
      "and rows without a token are never computed here");
}

double MoeTraining::coefficient(const char* kind) const {
  double sum = 0;
  for (std::size_t i = 0; i < load_balancing.size(); ++i) {
    if (load_balancing[i] == kind) sum += aux_loss_coeff[std::min(i, aux_loss_coeff.size() - 1)];
  }
  return sum;
}

bool MoeTraining::uses_sinkhorn() const {
  return std::ranges::find(load_balancing, "sinkhorn") != load_balancing.end();
}

RoutingRule MoeTraining::routing(RoutingRule rule) const {
  if (!uses_sinkhorn()) return rule;
  rule.score = rule.topk == 1 ? RouterScore::kSigmoid : RouterScore::kSoftmax;
  rule.pre_softmax = true;
  rule.normalize = false;
  rule.by_logit = true;
  return rule;
}

std::vector<std::string> MoeTraining::problems(const MoeConfig& moe) const {
  std::vector<std::string> out;
  if (aux_loss_coeff.size() != load_balancing.size()) {
    out.push_back(concat("--moe-aux-loss-coeff: has ", aux_loss_coeff.size(),
                         " numbers, --moe-router-load-balancing-type names ",
                         load_balancing.size()));
  }
  if (pad_to_capacity && capacity_factor <= 0) {
    out.push_back(
        "--moe-pad-expert-input-to-capacity: there is no capacity; give "
        "--moe-expert-capacity-factor or leave it out");
  }
  for (std::size_t i = 0; i < std::min(load_balancing.size(), aux_loss_coeff.size()); ++i) {
    if (load_balancing[i] == "none" && aux_loss_coeff[i] != 0) {
      out.push_back(concat("--moe-aux-loss-coeff: ", aux_loss_coeff[i],
                           " of none; name a loss by --moe-router-load-balancing-type, or give 0"));
    }
  }
  if (!uses_sinkhorn()) return out;
  auto refuse = [&](bool given, const char* flag) {
    if (given) out.push_back(concat(flag, ": sinkhorn balances by itself; leave it out"));
  };
  bool coefficients = std::ranges::any_of(aux_loss_coeff, [](double one) { return one != 0; });
  refuse(load_balancing.size() > 1, "--moe-router-load-balancing-type");
  refuse(coefficients, "--moe-aux-loss-coeff");
  refuse(moe.expert_bias, "--moe-router-enable-expert-bias");
  refuse(moe.num_groups > 1, "--moe-router-num-groups");
  return out;
}

}  // namespace bev
