// rl: reinforcement learning. A training run whose batches are completions that it samples itself.
#include <optional>
#include <utility>

#include "app/commands/commands.h"
#include "app/generation_options.h"
#include "app/options.h"
#include "app/reward_flags.h"
#include "app/run_folder.h"
#include "app/training.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/log.h"
#include "chat/turn_end.h"
#include "infer/end_tokens.h"
#include "posttrain/reference_model.h"
#include "rl/report_page.h"
#include "rl/rollout_source.h"
#include "train/report_file.h"

namespace bev {

namespace {

constexpr std::int64_t kCompletionTokens = 256;

struct RlFlags {
  RunConfig run;
  RlConfig rl;
  RewardFlags rewards;
  SamplingOptions sampling;
  EngineFlags engine;

  RlFlags() {
    run.data.preferences.rollouts = true;
    run.data.preferences.objective = "grpo";
    run.data.preferences.max_completion_length = kCompletionTokens;
    run.runtime.exact = true;
    sampling.temperature = 1;
  }
  void fields(FieldList& list) {
    run.fields(list);
    rl.fields(list);
    add_sampling_fields(list, sampling);
    rewards.fields(list);
    engine.fields(list);
  }
};

// What the rollouts of a step depend on besides its weights and its number.
std::string settings_text(const RlFlags& wanted, const FieldList& fields) {
  std::string text;
  for (const auto& entry : fields.entries()) {
    const std::string& name = entry->field.name();
    bool matters = entry->section == "rl" || entry->section == "reward" || name == "seed" ||
                   name == "data" || name == "objective" || name == "beta" || name == "lr" ||
                   name == "global-batch-size" || name == "hf-model" || name == "ref-model" ||
                   name == "teacher-model" || name == "teacher-weight" ||
                   name == "max-completion-length";
    bool output = name == "rollouts-out" || name == "report-html";
    if (matters && !output) text += concat(name, "=", entry->field.text(), "\n");
  }
  return concat(text, "temperature=", wanted.sampling.temperature);
}

std::unique_ptr<ChatTemplate> find_template(const DataConfig& data) {
  try {
    return std::make_unique<ChatTemplate>(
        ChatTemplate::load(data.tokenizer, data.chat_template, false));
  } catch (const Error&) {
    if (!data.chat_template.empty()) throw;
    return nullptr;  // prompts may be texts
  }
}

// What rollouts need of a layout and of other settings.
std::vector<std::string> rl_problems(const RlFlags& wanted) {
  const RunConfig& run = wanted.run;
  std::vector<std::string> out;
  // A teacher, or an environment, may be all that completions are measured by.
  bool rewards = !wanted.rewards.reward.empty() ||
                 (run.data.preferences.teacher_model.empty() && wanted.rl.env.empty());
  if (rewards) out = wanted.rewards.problems();
  for (std::string& problem : wanted.engine.problems()) out.push_back(std::move(problem));
  for (std::string& problem :
       wanted.rl.problems(run.data.preferences, run.batch.global_batch_size)) {
    out.push_back(std::move(problem));
  }
  const char* why = ": completions are sampled in the layout of the training; leave it out";
  const ParallelConfig& parallel = run.parallel;
  if (parallel.context_parallel_size > 1) out.push_back(concat("--context-parallel-size", why));
  if (parallel.sequence_parallel) out.push_back(concat("--sequence-parallel", why));
  if (parallel.num_virtual_stages_per_pipeline_rank > 1 ||
      parallel.num_layers_per_virtual_pipeline_stage > 0) {
    out.push_back(concat("--num-virtual-stages-per-pipeline-rank", why));
  }
  if (wanted.sampling.temperature <= 0) {
    out.push_back("--temperature: completions of a prompt must differ; give more than 0");
  }
  if (wanted.sampling.temperature != 1 && run.model.final_logit_softcapping != 0) {
    out.push_back("--temperature: the model caps its logits; give 1");
  }
  bool records = !run.checkpoint.save.empty() || !run.log.metrics_out.empty();
  if (!wanted.rl.report_html.empty() && !records) {
    out.push_back("--report-html: draws what --save or --metrics-out keeps; give one of them");
  }
  if (run.train.eval_interval > 0) out.push_back("--eval-interval: rl has no validation data");
  if (run.train.epochs > 0) out.push_back("--epochs: give --train-iters, the number of updates");
  return out;
}

class RolloutMaker final : public BatchMaker {
 public:
  RolloutMaker(const RlFlags& wanted, const FieldList& fields) : wanted_(wanted), fields_(fields) {}

  std::vector<std::string> settle(RunConfig& run) override {
    if (run.batch.global_batch_size == 0) run.batch.global_batch_size = wanted_.rl.rollouts();
    return rl_problems(wanted_);
  }

  void prepare(const RunConfig& run, const Tokenizer* tokenizer,
               const CommandInput& input) override {
    run_ = &run;
    rule_ = wanted_.rl.rule(run.data.preferences);
    // Sampling is training to the bit with exact kernels and one version of the weights only.
    const bool same = run.runtime.exact && wanted_.rl.partial_rollouts == 0;
    if (wanted_.rl.correction.empty() && !same) {
      rule_.policy.correction = Correction::kTokenTruncate;
    }
    ObjectiveRule trained = rule_;
    if (rule_.policy.critic && rule_.gae.kl_in_reward) trained.policy.beta = 0;
    objective_.emplace(trained,
                       CompletionInputs{.reference = rule_.uses_reference(), .sampling = true});
    chat_template_ = find_template(run.data);
    const ChatTemplate* chat_template = chat_template_.get();
    Request request = make_request(*tokenizer, chat_template);
    PromptSet prompts(read_prompt_rows(run.data.preferences.data, wanted_.rl.label_key), *tokenizer,
                      chat_template, longest_prompt(),
                      static_cast<std::uint64_t>(run.runtime.seed));
    WeightedRewards rewards;
    std::unique_ptr<Reward> environment;
    if (input.launch.process == 0) {
      const std::string& env = wanted_.rl.env;
      if (!env.empty()) environment = make_environment(env, wanted_.rewards.options);
      rewards = make_rewards(wanted_.rewards);
      check_row_labels(rewards, prompts);
    }
    const std::string& save = run.checkpoint.save;
    parts_.emplace(RolloutParts{
        .config = wanted_.rl,
        .rule = rule_,
        .prompts = std::move(prompts),
        .rewards = std::move(rewards.rewards),
        .weights = std::move(rewards.weights),
        .tokenizer = *tokenizer,
        .request = std::move(request),
        .engine = engine_options(*tokenizer),
        .bank = RolloutBank(save.empty() ? "" : join_path(save, "rollouts"),
                            wanted_.rl.rollout_bank_max_bytes, settings_text(wanted_, fields_)),
        .micro_batch_size = run.batch.micro_batch_size,
        .global_batch_size = run.batch.global_batch_size,
        .teacher_weight = run.data.preferences.teacher_weight,
        .environment = std::move(environment),
        .chat_template = chat_template});
  }

  // The model that is sampled at a temperature is the one that is trained: its logits are divided.
  void change(EngineOptions& options) const override {
    options.objective = &*objective_;
    options.model.logit_scale /= wanted_.sampling.temperature;
  }

  std::unique_ptr<StepSource> open(Engine& engine) override {
    return std::make_unique<Source>(engine, *parts_, reference_folder(),
                                    run_->data.preferences.teacher_model,
                                    1 / wanted_.sampling.temperature);
  }

  void finish(const RunOutcome&) override {
    const std::string metrics = metrics_path(*run_);
    const std::string path = report_path();
    if (path.empty() || metrics.empty() || !path_exists(metrics)) return;
    write_report("--report-html", path, report_page(MetricsFile(metrics), parts_->samples));
    log_info(concat("report: ", path));
  }

 private:
  // The rollouts of a rank with the reference model that they need.
  class Source final : public StepSource {
   public:
    Source(Engine& engine, RolloutParts& parts, const std::string& reference,
           const std::string& teacher, double logit_factor) {
      RankModel& policy = engine.model();
      if (!reference.empty()) {
        reference_ = open_reference(policy, reference, "--ref-model", logit_factor);
      }
      if (!teacher.empty()) {
        teacher_ = open_reference(policy, teacher, "--teacher-model", logit_factor);
      }
      rollouts_.emplace(engine, parts, reference_.get(), teacher_.get());
    }
    StepBatch next(std::int64_t iteration) override { return rollouts_->next(iteration); }
    const std::vector<Metric>& metrics() const override { return rollouts_->metrics(); }

   private:
    std::unique_ptr<RankModel> reference_, teacher_;
    std::optional<RolloutSource> rollouts_;
  };

  std::string report_path() const {
    const std::string& save = run_->checkpoint.save;
    if (!wanted_.rl.report_html.empty() || save.empty()) return wanted_.rl.report_html;
    return join_path(save, "rl.html");
  }

  // "": there is none, or it is the model without its adapters.
  std::string reference_folder() const {
    if (!rule_.uses_reference()) return "";
    const std::string& given = run_->data.preferences.ref_model;
    if (!given.empty() || run_->model.lora.used()) return given;
    BEV_CHECK(!run_->train.hf_model.empty(), ErrorKind::kConfig,
              "--ref-model: is missing; --beta compares with a reference, usually the model that "
              "the run began with");
    return run_->train.hf_model;
  }

  std::int64_t longest_prompt() const {
    const PreferenceConfig& data = run_->data.preferences;
    std::int64_t room = run_->data.seq_length - data.max_completion_length;
    return data.max_prompt_length > 0 ? std::min(room, data.max_prompt_length) : room;
  }

  Request make_request(const Tokenizer& tokenizer, const ChatTemplate* chat_template) const {
    Request request;
    request.sampling = wanted_.sampling;
    request.sampling.temperature = 1;  // see change()
    request.sampling.seed = static_cast<std::uint64_t>(run_->runtime.seed);
    request.max_new_tokens = run_->data.preferences.max_completion_length;
    const std::string& files = run_->train.hf_model;
    if (!files.empty()) request.end_tokens = read_end_tokens(files);
    if (request.end_tokens.empty() && tokenizer.eod()) request.end_tokens = {*tokenizer.eod()};
    if (chat_template != nullptr) {
      std::optional<std::int32_t> end = turn_end(*chat_template, tokenizer);
      if (end) request.end_tokens.push_back(*end);
    }
    if (!wanted_.rl.stop.empty()) request.stop = {wanted_.rl.stop_text()};
    return request;
  }

  InferenceOptions engine_options(const Tokenizer& tokenizer) const {
    InferenceOptions options = wanted_.engine.options();
    options.tokenizer = &tokenizer;
    return options;
  }

  static void check_row_labels(const WeightedRewards& rewards, const PromptSet& prompts) {
    std::vector<RewardRow> rows;
    for (std::int64_t i = 0; i < prompts.size(); ++i) {
      const PromptRow& row = prompts.at(i).row;
      rows.push_back({.where = row.where,
                      .prompt = {},
                      .completion = {},
                      .label = row.label,
                      .has_label = row.has_label});
    }
    check_labels(rewards.rewards, rows);
  }

  const RlFlags& wanted_;
  const FieldList& fields_;
  const RunConfig* run_ = nullptr;
  ObjectiveRule rule_;
  std::unique_ptr<ChatTemplate> chat_template_;
  std::optional<CompletionObjective> objective_;
  std::optional<RolloutParts> parts_;
};

int run_rl(RlFlags& wanted, const CommandInput& input) {
  RolloutMaker maker(wanted, input.fields);
  return run_training(wanted.run, input, &maker);
}

}  // namespace

const Command kRlCommand = {
    .name = "rl",
    .summary = "train by reinforcement: sample completions, reward them, update",
    .examples =
        "bevatron rl --hf-model DIR --data prompts.jsonl --reward numeric --max-completion-length "
        "128 --train-iters 200 --lr 1e-6 --save run --export-hf out\n"
        "bevatron rl --hf-model DIR --data prompts.jsonl --objective dapo --reward "
        "exec:./judge.py --dynamic-sampling --train-iters 100 --lora-rank 16",
    .call = call_of<RlFlags, run_rl>,
    .usual =
        "hf-model data reward objective num-generations prompts-per-step max-completion-length "
        "temperature stop train-iters lr beta lora-rank save load export-hf"};

}  // namespace bev
