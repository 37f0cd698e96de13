// --epochs: the length of a run in passes over its data.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/run_config.h"
#include "data/dataset.h"

namespace bev {

class Options;

// True if the length follows from the data. It does not in a dry run, which opens none.
bool by_epochs(const TrainConfig& train);

// Problems of --epochs, before anything is resolved. If the length is given otherwise, --epochs of
// a configuration file is dropped; else the run gets a length to check its other flags with.
std::vector<std::string> check_epochs(RunConfig& run, const Options& options);

// Sets the number of iterations from the data, which must be prepared, and undoes everything that
// was derived from the configuration `given`; call resolve() after it. Returns conversations that
// were opened for it, or null.
std::shared_ptr<const Dataset> resolve_epochs(RunConfig& run, const RunConfig& given);

}  // namespace bev
