#include "checkpoint/validation_state.h"

#include <algorithm>
#include <cmath>

#include "base/fields.h"

namespace bev {

void ValidationState::fields(FieldList& list) {
  list.section(kSection);
  list.add("validated", validated, "");
  list.add("validation_loss", loss, "");
  list.add("best_validation_iteration", best_iteration, "").min(0);
  list.add("best_validation_loss", best_loss, "");
  list.add("validations_not_improved", not_improved, "").min(0);
  list.add("best_steps", best_steps, "");
  list.add("best_step_losses", best_step_losses, "");
}

void ValidationState::add(std::int64_t iteration, double validation_loss) {
  bool finite = std::isfinite(validation_loss);
  validated = finite;
  loss = finite ? validation_loss : 0;
  if (finite && (best_iteration == 0 || validation_loss < best_loss)) {
    best_iteration = iteration;
    best_loss = validation_loss;
    not_improved = 0;
  } else {
    ++not_improved;
  }
}

void ValidationState::keep_step(std::int64_t iteration, std::int64_t count) {
  // A manifest may have been edited.
  best_step_losses.resize(best_steps.size(), INFINITY);
  for (std::size_t i = 0; i < best_steps.size(); ++i) {
    if (best_steps[i] != iteration) continue;
    best_steps.erase(best_steps.begin() + static_cast<std::ptrdiff_t>(i));
    best_step_losses.erase(best_step_losses.begin() + static_cast<std::ptrdiff_t>(i));
    break;
  }
  if (validated) {
    auto place = std::ranges::upper_bound(best_step_losses, loss) - best_step_losses.begin();
    best_steps.insert(best_steps.begin() + place, iteration);
    best_step_losses.insert(best_step_losses.begin() + place, loss);
  }
  if (std::ssize(best_steps) <= count) return;
  best_steps.resize(static_cast<std::size_t>(count));
  best_step_losses.resize(static_cast<std::size_t>(count));
}

}  // namespace bev
