// How adapters begin, as far as the weights of the model decide it.
#pragma once

#include <cstddef>

#include "parallel/rank_model.h"

namespace bev {

// For a new adapter: copies the modules that train whole, sets the factors of
// PiSSA, and the magnitudes of DoRA to the norms of the model's rows. Collective.
void start_adapter(RankModel& model);

// Sets PiSSA's frozen factors to the part of the weights that its factors began as, if the adapter
// has any. Collective.
void set_opposite_factors(RankModel& model, std::size_t number);

}  // namespace bev
