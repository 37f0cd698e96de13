#include "infer/prompt_scores.h"

#include <algorithm>
#include <span>

#include "base/divide.h"
#include "infer/selections.h"
#include "kernels/loss.h"
#include "ops/collective.h"
#include "ops/token_log_probs.h"

namespace bev {

namespace {

// Logits of a long prompt are computed a few rows at a time: nobody plans memory for all of them.
HeadSpec scoring_head(RankModel& model) {
  constexpr std::int64_t kRows = 256;
  const Context& ctx = model.ctx();
  HeadSpec head = model.stage().head();
  const LogitsRule& rule = ctx.kernels.loss.logits;
  const Dtype dtype = rule.narrow ? ctx.dtype : ctx.wide();
  const std::int64_t row = round_up(head.weight->local[0], rule.row_multiple);
  const std::int64_t bytes = kRows * row * static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t most = head.chunk_bytes > 0 ? head.chunk_bytes : rule.chunk_bytes;
  head.chunk_bytes = std::min(bytes, most);
  return head;
}

}  // namespace

PromptScores score_prompt(RankModel& model, const Var& hidden, const ScheduledRun& run) {
  Context& ctx = model.ctx();
  const Sequence& sequence = *run.sequence;
  const std::int64_t count = std::min(run.count, sequence.prompt_tokens - 1 - run.begin);
  const auto next =
      std::span(sequence.tokens)
          .subspan(static_cast<std::size_t>(run.begin + 1), static_cast<std::size_t>(count));
  Tensor targets = ctx.upload<std::int32_t>(next, "batch");
  Var rows{hidden.tensor.rows(0, count), hidden.placement, -1, nullptr};
  Var entered = enter_tensor_parallel(ctx, model.stage().final_states(ctx, rows), count);
  const std::int64_t k = sequence.asked().prompt_top_logprobs;
  TopTokens top;
  if (k > 0) {
    top = {ctx.allocate(Dtype::kI32, {count, k}, "logits"),
           ctx.allocate(ctx.wide(), {count, k}, "logits"),
           ctx.allocate(ctx.wide(), {count}, "logits")};
  }
  Var log_probs =
      token_log_probs(ctx, entered, targets, scoring_head(model), k > 0 ? &top : nullptr);
  PromptScores scores{sequence.request};
  scores.logprobs = download_wide(ctx, log_probs.tensor);
  if (k == 0) return scores;
  const std::vector<std::int32_t> ids = ctx.download<std::int32_t>(top.ids);
  const TopLists lists{ids, download_wide(ctx, top.values), download_wide(ctx, top.first_losses),
                       k};
  for (std::size_t i = 0; i < scores.logprobs.size(); ++i) {
    scores.top.push_back(lists.list(i, k, {next[i], scores.logprobs[i]}));
  }
  return scores;
}

}  // namespace bev
