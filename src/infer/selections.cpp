#include "infer/selections.h"

#include <algorithm>
#include <span>

#include "infer/step_news.h"
#include "kernels/device.h"

namespace bev {

SelectionOutputs::SelectionOutputs(Context& ctx, std::int64_t rows, std::int64_t top) {
  words = Tensor(ctx.inputs, Dtype::kI32, {2 * rows}, "selections");
  losses = Tensor(ctx.inputs, ctx.wide(), {rows}, "selections");
  top_ids = Tensor(ctx.inputs, Dtype::kI32, {rows * top}, "selections");
  top_values = Tensor(ctx.inputs, ctx.wide(), {rows * top}, "selections");
  if (top > 0) first_losses = Tensor(ctx.inputs, ctx.wide(), {rows}, "selections");
}

TopTokens SelectionOutputs::top(std::int64_t rows, std::int64_t k) const {
  return {top_ids.rows(0, rows * k).reshape({rows, k}),
          top_values.rows(0, rows * k).reshape({rows, k}), first_losses.rows(0, rows)};
}

void SelectionOutputs::arrange(std::int64_t rows) {
  tokens = words.rows(0, rows);
  status = words.rows(rows, 2 * rows);
}

void StepFlight::fetch(Context& ctx, const SelectionOutputs& from, std::int64_t count) {
  auto add = [&](const View& view, auto& host) {
    host.resize(static_cast<std::size_t>(view.numel()));
    fetches.push_back(ctx.kernels.device.fetch(ctx.stream, view, host.data()));
  };
  auto add_wide = [&](const View& view, std::vector<double>& wide, std::vector<float>& narrow) {
    view.dtype == Dtype::kF64 ? add(view, wide) : add(view, narrow);
  };
  rows = count;
  add(from.words.rows(0, 2 * rows), words);
  add_wide(from.losses.rows(0, rows), losses, narrow_losses);
  if (top == 0) return;
  lists.width = top;
  add(from.top_ids.rows(0, rows * top), lists.ids);
  add_wide(from.top_values.rows(0, rows * top), lists.values, narrow_top);
  add_wide(from.first_losses.rows(0, rows), lists.first_losses, narrow_first);
  if (!asked_logits.empty()) add_wide(asked_logits, asked, narrow_asked);
}

std::vector<TopLogprob> TopLists::list(std::size_t row, std::int64_t count,
                                       const TopLogprob& own) const {
  const std::size_t begin = row * static_cast<std::size_t>(width);
  const std::span row_ids = std::span(ids).subspan(begin, static_cast<std::size_t>(count));
  const auto place =
      static_cast<std::size_t>(std::ranges::find(row_ids, own.token) - row_ids.begin());
  std::vector<TopLogprob> out;
  for (std::size_t i = 0; i < row_ids.size() && row_ids[i] >= 0; ++i) {
    const double value = values[begin + i];
    double entry = logprob(row, value);
    // All that are listed before a token are at least as likely, and so are all if it is not there.
    if (i < place) entry = std::max(entry, own.logprob);
    if (i > place) entry = std::min(entry, own.logprob);
    const bool same = i == place || (place < row_ids.size() && value == values[begin + place]);
    out.push_back({row_ids[i], same ? own.logprob : entry});
  }
  return out;
}

double TopLists::logprob(std::size_t row, double logit) const {
  return logit - values[row * static_cast<std::size_t>(width)] - first_losses[row];
}

namespace {

std::vector<double> widened(const std::vector<double>& wide, const std::vector<float>& narrow) {
  return narrow.empty() ? wide : std::vector<double>(narrow.begin(), narrow.end());
}

}  // namespace

StepResults StepFlight::finish(std::int64_t vocabulary) {
  for (Work& work : fetches) work.wait();
  results.selected.resize(results.selecting.size());
  if (rows == 0) return std::move(results);  // another stage selects, or there is nothing to select
  const std::vector<double> all = widened(losses, narrow_losses);
  for (std::size_t i = 0; i < results.selected.size(); ++i) {
    SelectedToken& selected = results.selected[i];
    selected.token = words[i];
    selected.finite = words[static_cast<std::size_t>(rows) + i] ==
                      static_cast<std::int32_t>(SelectStatus::kSelected);
    selected.logprob = 0 - all[i];  // not -0
  }
  if (top > 0) add_lists();
  if (wants_logits) add_logits(vocabulary);
  return std::move(results);
}

void StepFlight::add_lists() {
  lists.values = widened(lists.values, narrow_top);
  lists.first_losses = widened(lists.first_losses, narrow_first);
  const std::vector<double> asked_values = widened(asked, narrow_asked);
  auto next = asked_values.begin();
  for (std::size_t i = 0; i < results.selected.size(); ++i) {
    SelectedToken& selected = results.selected[i];
    const Request& request = results.selecting[i]->asked();
    const TopLogprob own{selected.token, selected.logprob};
    // All that were found, so that a token has one number in both lists.
    selected.top = lists.list(i, top, own);
    for (std::int32_t token : request.logprob_tokens) {
      const double logit = *next++;
      auto found = std::ranges::find(selected.top, token, &TopLogprob::token);
      const double logprob = token == own.token            ? own.logprob
                             : found != selected.top.end() ? found->logprob
                                                           : lists.logprob(i, logit);
      selected.asked.push_back({token, logprob});
    }
    const auto wanted = static_cast<std::size_t>(request.top_logprobs);
    if (selected.top.size() > wanted) selected.top.resize(wanted);
  }
}

void StepFlight::add_logits(std::int64_t vocabulary) {
  for (std::size_t i = 0; i < results.selected.size(); ++i) {
    if (!results.selecting[i]->asked().wants_logits()) continue;
    auto row = logits.begin() + static_cast<std::ptrdiff_t>(i) * vocabulary;
    results.selected[i].logits.assign(row, row + vocabulary);
  }
}

namespace {

void pass_results(SharedNumbers& numbers, StepResults& results) {
  for (SelectedToken& at : results.selected) {
    numbers.pass(at.token);
    numbers.pass(at.finite);
    numbers.pass(at.logprob);
    numbers.pass_list(at.logits);
    pass_top(numbers, at.top);
    pass_top(numbers, at.asked);
  }
  for (PromptScores& scores : results.prompts) {
    numbers.pass_list(scores.logprobs);
    pass_top_lists(numbers, scores.top);
  }
}

}  // namespace

std::vector<double> download_wide(Context& ctx, const Tensor& x) {
  if (x.dtype() == Dtype::kF64) return ctx.download<double>(x);
  const std::vector<float> values = ctx.download<float>(x);
  return {values.begin(), values.end()};
}

void share_results(Group& pp, bool last_stage, StepResults& results) {
  if (pp.size() == 1) return;
  SharedNumbers numbers(last_stage);
  if (last_stage) pass_results(numbers, results);
  numbers.broadcast(pp, pp.size() - 1);
  if (!last_stage) pass_results(numbers, results);
}

}  // namespace bev
