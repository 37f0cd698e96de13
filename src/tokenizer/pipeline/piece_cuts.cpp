#include "tokenizer/pipeline/piece_cuts.h"

namespace bev {

namespace {

// A match joins the preceding stretch, unless that is a match too.
void merge_with_previous(std::vector<Stretch>& stretches) {
  std::size_t kept = 0;
  bool previous = false;
  for (const Stretch stretch : stretches) {
    if (stretch.matched && !previous && kept > 0) {
      stretches[kept - 1].end = stretch.end;
    } else {
      stretches[kept++] = stretch;
    }
    previous = stretch.matched;
  }
  stretches.resize(kept);
}

// The same in the other direction.
void merge_with_next(std::vector<Stretch>& stretches) {
  std::size_t kept = stretches.size();
  bool previous = false;
  for (std::size_t i = stretches.size(); i-- > 0;) {
    const Stretch stretch = stretches[i];
    if (stretch.matched && !previous && kept < stretches.size()) {
      stretches[kept].begin = stretch.begin;
    } else {
      stretches[--kept] = stretch;
    }
    previous = stretch.matched;
  }
  stretches.erase(stretches.begin(), stretches.begin() + static_cast<std::ptrdiff_t>(kept));
}

void merge_contiguous(std::vector<Stretch>& stretches) {
  std::size_t kept = 0;
  bool previous = false;
  for (const Stretch stretch : stretches) {
    if (stretch.matched == previous && kept > 0) {
      stretches[kept - 1].end = stretch.end;
    } else {
      stretches[kept++] = stretch;
    }
    previous = stretch.matched;
  }
  stretches.resize(kept);
}

}  // namespace

void apply_behavior(std::vector<Stretch>& stretches, Behavior behavior) {
  switch (behavior) {
    case Behavior::kRemoved:
      std::erase_if(stretches, [](const Stretch& stretch) { return stretch.matched; });
      break;
    case Behavior::kIsolated:
      break;
    case Behavior::kMergedWithPrevious:
      merge_with_previous(stretches);
      break;
    case Behavior::kMergedWithNext:
      merge_with_next(stretches);
      break;
    case Behavior::kContiguous:
      merge_contiguous(stretches);
      break;
  }
}

}  // namespace bev
