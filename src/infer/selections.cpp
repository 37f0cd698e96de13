#include "infer/selections.h"

#include "infer/shared_numbers.h"
#include "kernels/device.h"

namespace bev {

SelectionOutputs::SelectionOutputs(Context& ctx, std::int64_t rows, std::int64_t top) {
  words = Tensor(ctx.inputs, Dtype::kI32, {2 * rows}, "selections");
  losses = Tensor(ctx.inputs, ctx.wide(), {rows}, "selections");
  top_ids = Tensor(ctx.inputs, Dtype::kI32, {rows * top}, "selections");
  top_values = Tensor(ctx.inputs, ctx.wide(), {rows * top}, "selections");
  if (top > 0) first_losses = Tensor(ctx.inputs, ctx.wide(), {rows}, "selections");
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
  add(from.top_ids.rows(0, rows * top), top_ids);
  add_wide(from.top_values.rows(0, rows * top), top_values, narrow_top);
  add_wide(from.first_losses.rows(0, rows), first_losses, narrow_first);
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
  if (top > 0) add_top();
  if (wants_logits) add_logits(vocabulary);
  return std::move(results);
}

void StepFlight::add_top() {
  const std::vector<double> values = widened(top_values, narrow_top);
  const std::vector<double> first = widened(first_losses, narrow_first);
  for (std::size_t i = 0; i < results.selected.size(); ++i) {
    SelectedToken& selected = results.selected[i];
    const std::size_t begin = i * static_cast<std::size_t>(top);
    const auto wanted = static_cast<std::size_t>(results.selecting[i]->asked().top_logprobs);
    for (std::size_t at = begin; at < begin + wanted && top_ids[at] >= 0; ++at) {
      const bool same = top_ids[at] == selected.token;
      const double logprob = values[at] - values[begin] - first[i];
      selected.top.push_back({top_ids[at], same ? selected.logprob : logprob});
    }
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
    numbers.pass_list(at.top, [&](TopLogprob& top) {
      numbers.pass(top.token);
      numbers.pass(top.logprob);
    });
  }
  for (std::vector<double>& list : results.prompt_logprobs) numbers.pass_list(list);
}

}  // namespace

void share_results(Group& pp, bool last_stage, StepResults& results) {
  if (pp.size() == 1) return;
  SharedNumbers numbers(last_stage);
  if (last_stage) pass_results(numbers, results);
  numbers.broadcast(pp, pp.size() - 1);
  if (!last_stage) pass_results(numbers, results);
}

}  // namespace bev
