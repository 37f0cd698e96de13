#include "rl/rl_config.h"

#include "base/error.h"
#include "base/fields.h"

namespace bev {

void RlConfig::fields(FieldList& list) {
  list.section("rl");
  list.add("num-generations", num_generations, "completions of each prompt: a group")
      .alias("grpo-group-size")
      .min(1)
      .limit(1 << 12);
  list.add("prompts-per-step", prompts_per_step,
           "prompts that are completed before the weights are updated; --global-batch-size "
           "completions make an update, all of them unless it is given")
      .alias("grpo-prompts-per-step")
      .min(1)
      .limit(1 << 20);
  list.add("num-iterations", num_iterations, "updates with each completion")
      .alias("grpo-iterations")
      .min(1);
  list.add("dynamic-sampling", dynamic_sampling,
           "leave out groups whose rewards are all equal, and sample others in their place")
      .alias("grpo-filter-groups-with-same-reward");
  list.add("max-gen-batches", max_gen_batches,
           "times --prompts-per-step prompts that dynamic sampling may take for a step")
      .min(1);
  list.add("overlong-buffer", overlong_buffer,
           "tokens before --max-completion-length where the reward falls, linearly, by "
           "--overlong-penalty; 0: none")
      .min(0);
  list.add("overlong-penalty", overlong_penalty, "what a completion of full length loses").min(0);
  list.add("mask-truncated-completions", mask_truncated_completions,
           "completions that have no end are left out of the loss");
  list.add("partial-rollouts", partial_rollouts,
           "tokens of each completion that are sampled at a time; groups that end first make the "
           "step, and the others go on in the next ones, with newer weights; 0: all at once")
      .min(0);
  list.add("max-inflight-groups", max_inflight_groups,
           "partial rollouts: groups that are sampled at a time")
      .min(0)
      .defaults_to("2 x --prompts-per-step");
  list.add("rollout-max-lag", rollout_max_lag,
           "partial rollouts: steps of rollouts that what was begun may be behind the weights; "
           "older groups are sampled anew")
      .alias("rl-generation-lag")
      .min(0);
  list.add("env", env,
           "exec:COMMAND, a program that replies to the model's turns, by running tools for "
           "example, and ends the conversation");
  list.add("max-turns", max_turns, "turns of the model in a conversation with --env").min(1);
  list.add("stop", stop,
           "text that ends a completion, besides the model's end tokens; \\n is a line end");
  list.add("label-key", label_key, "member of the data with the right answer")
      .defaults_to("label or answer");
  list.add("rollouts-out", rollouts_out, "JSON lines with every completion that was sampled");
  list.add("report-html", report_html, "page with the course of the run, drawn, and samples")
      .defaults_to("rl.html in --save");
  list.add("rollout-bank-max-bytes", rollout_bank_max_bytes,
           "completions kept in --save, with which a run that was killed goes on")
      .alias("rl-rollout-bank-max-bytes")
      .min(0);
  const char* own = "that of the objective";
  list.add("epsilon-low", epsilon_low, "lower clip: 1 - epsilon (cispo: the bound itself)")
      .alias("grpo-clamp-eps-lower")
      .defaults_to(own);
  list.add("epsilon-high", epsilon_high, "upper clip: 1 + epsilon (cispo: the bound itself)")
      .alias("grpo-clamp-eps-upper")
      .defaults_to(own);
  list.add("dual-clip", dual_clip, "bound of the loss of a negative advantage; 0: none")
      .defaults_to(own);
  list.add("delta", delta, "upper bound of the unclipped ratio; 0: none").defaults_to(own);
  list.add("kl", kl, "estimate of the KL divergence: k1, k2 or k3").defaults_to(own);
  list.add("aggregation", aggregation,
           "mean of the token losses: token-mean, seq-mean-token-mean, seq-mean-token-sum or "
           "seq-mean-token-sum-norm")
      .defaults_to(own);
  list.add("advantage-std", advantage_std,
           "standard deviation by which advantages are divided: sample, population or none")
      .defaults_to(own);
  list.add("advantage-eps", advantage_eps, "what is added to it").defaults_to(own);
  list.add("leave-one-out", leave_one_out, "true: the baseline of a row is the mean of the others")
      .defaults_to(own);
  list.add("correction", correction,
           "importance weights for sampling that differs from training: none, token_truncate, "
           "token_mask, sequence_truncate or sequence_mask")
      .defaults_to("none with --exact, else token_truncate");
  list.add("correction-min", correction_min, "their lower bound").defaults_to(own);
  list.add("correction-max", correction_max, "their upper bound").defaults_to(own);
  list.add("vf-coef", vf_coef, "ppo: factor of the loss of the critic's values").defaults_to("0.1");
  list.add("value-clip", value_clip,
           "ppo: how far a value may move from that of the rollouts before its loss stays; 0: any "
           "distance")
      .alias("cliprange-value")
      .defaults_to("0.2");
  list.add("gamma", gamma, "ppo: discount of later rewards").defaults_to("1");
  list.add("lambda", lambda, "ppo: share of later steps in advantages (GAE)").defaults_to("0.95");
  list.add("whiten-advantages", whiten_advantages,
           "ppo: true gives the advantages of a step mean 0 and variance 1")
      .defaults_to("true");
  list.add("kl-in-reward", kl_in_reward,
           "ppo: true takes --beta x the KL estimate of each token from its reward, false adds it "
           "to the loss")
      .defaults_to("true");
}

std::vector<std::string> RlConfig::apply(const PreferenceConfig& preferences,
                                         ObjectiveRule& rule) const {
  const std::string length = concat(preferences.max_completion_length);
  const ObjectiveFlag flags[] = {{"epsilon-low", "epsilon-low", epsilon_low},
                                 {"epsilon-high", "epsilon-high", epsilon_high},
                                 {"dual-clip", "dual-clip", dual_clip},
                                 {"delta", "delta", delta},
                                 {"kl", "kl", kl},
                                 {"aggregation", "aggregation", aggregation},
                                 {"max-completion-length", "max-completion-length", length},
                                 {"advantage-std", "advantage-std", advantage_std},
                                 {"advantage-eps", "advantage-eps", advantage_eps},
                                 {"leave-one-out", "leave-one-out", leave_one_out},
                                 {"correction", "correction", correction},
                                 {"correction-min", "correction-min", correction_min},
                                 {"correction-max", "correction-max", correction_max},
                                 {"vf-coef", "vf-coef", vf_coef},
                                 {"value-clip", "value-clip", value_clip}};
  std::vector<std::string> out = apply_flags(flags, rule);
  for (std::string& problem : apply_to_critic(rule)) out.push_back(std::move(problem));
  return out;
}

std::vector<std::string> RlConfig::apply_to_critic(ObjectiveRule& rule) const {
  rule.gae.whiten = rule.gae.kl_in_reward = true;
  // As TRL does: the difference itself, where it is a reward.
  if (rule.policy.critic && kl.empty()) rule.policy.kl = KlEstimate::kK1;
  FieldList list;
  rule.gae.fields(list);
  list.add("kl-in-reward", rule.gae.kl_in_reward, "");
  const ObjectiveFlag flags[] = {{"gamma", "gamma", gamma},
                                 {"lambda", "lambda", lambda},
                                 {"whiten-advantages", "whiten", whiten_advantages},
                                 {"kl-in-reward", "kl-in-reward", kl_in_reward}};
  std::vector<std::string> out;
  for (const ObjectiveFlag& given : flags) {
    if (given.text.empty()) continue;
    std::string problem = rule.policy.critic ? list.find(given.setting)->set_text(given.text)
                                             : concat(rule.name, " has no critic; leave it out");
    if (!problem.empty()) out.push_back(concat("--", given.flag, ": ", problem));
  }
  return out;
}

void RlConfig::add_partial_problems(std::vector<std::string>& out) const {
  if (partial_rollouts == 0) {
    if (max_inflight_groups > 0) out.push_back("--max-inflight-groups: needs --partial-rollouts");
    return;
  }
  if (max_inflight_groups > 0 && max_inflight_groups < prompts_per_step) {
    out.push_back(concat("--max-inflight-groups: ", max_inflight_groups,
                         " is less than --prompts-per-step ", prompts_per_step));
  }
  if (dynamic_sampling) {
    out.push_back(
        "--dynamic-sampling: fills a step with groups of its own; leave it out with "
        "--partial-rollouts");
  }
  if (!env.empty()) {
    out.push_back(
        "--env: its conversations end within a step; leave it out with "
        "--partial-rollouts");
  }
  if (stop_text().size() > 1) {
    out.push_back(
        "--stop: a text of several characters may fall between two parts of a "
        "completion; give one character with --partial-rollouts");
  }
  if (correction == "none") {
    out.push_back(
        "--correction: the parts of partial rollouts are sampled by other weights than "
        "those that are trained; leave out none");
  }
}

std::vector<std::string> RlConfig::problems(const PreferenceConfig& preferences,
                                            std::int64_t global_batch_size) const {
  std::vector<std::string> out;
  if (global_batch_size > 0 && rollouts() % global_batch_size != 0) {
    out.push_back(concat("--global-batch-size: ", global_batch_size, " does not divide the ",
                         rollouts(), " completions of --prompts-per-step ", prompts_per_step,
                         " x --num-generations ", num_generations));
  }
  if (overlong_buffer > preferences.max_completion_length) {
    out.push_back(concat("--overlong-buffer: ", overlong_buffer,
                         " is more than --max-completion-length ",
                         preferences.max_completion_length));
  }
  add_partial_problems(out);
  // Its own settings have been checked.
  ObjectiveRule rule = find_objective(preferences.objective);
  for (std::string& problem : apply(preferences, rule)) out.push_back(std::move(problem));
  if (rule.policy.grouped() && num_generations < 2) {
    out.push_back(concat("--num-generations: ", rule.name,
                         " compares the completions of a prompt; give 2 or more"));
  }
  if (dynamic_sampling && num_generations < 2) {
    out.push_back(
        "--dynamic-sampling: compares completions of a prompt; give --num-generations 2 "
        "or more");
  }
  return out;
}

std::string RlConfig::stop_text() const {
  std::string text;
  for (std::size_t i = 0; i < stop.size(); ++i) {
    bool line_end = stop.substr(i, 2) == "\\n";
    text += line_end ? '\n' : stop[i];
    i += line_end ? 1 : 0;
  }
  return text;
}

ObjectiveRule RlConfig::rule(const PreferenceConfig& preferences) const {
  ObjectiveRule rule = preferences.rule();
  std::vector<std::string> problems = apply(preferences, rule);
  BEV_CHECK(problems.empty(), ErrorKind::kConfig, join(problems, "; "));
  return rule;
}

}  // namespace bev
