// What the validations of a run have found, as far as later iterations depend on it: for early
// stopping, and for keeping the best checkpoints.
#pragma once

#include <cstdint>
#include <vector>

namespace bev {

class FieldList;

struct ValidationState {
  static constexpr char kSection[] = "validation";  // of the fields, which old manifests lack

  bool validated = false;           // after the very iteration of the state
  double loss = 0;                  // of the last validation
  std::int64_t best_iteration = 0;  // 0: there was none with a finite loss
  double best_loss = 0;
  std::int64_t not_improved = 0;  // validations since the best
  // The saved steps with the best losses, best first.
  std::vector<std::int64_t> best_steps = {};
  std::vector<double> best_step_losses = {};

  void fields(FieldList& list);
  // Counts the validation after an iteration. A loss that is not finite is no improvement.
  void add(std::int64_t iteration, double validation_loss);
  // True after `patience` validations without improvement; 0: never.
  bool exhausted(std::int64_t patience) const { return patience > 0 && not_improved >= patience; }
  // Lists the step among the best if it was validated, and keeps at most `count`.
  void keep_step(std::int64_t iteration, std::int64_t count);
};

}  // namespace bev
