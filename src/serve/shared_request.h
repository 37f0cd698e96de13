// A request on its way from world rank 0 to the other ranks.
#pragma once

#include "infer/request.h"
#include "infer/shared_numbers.h"

namespace bev {

// Writes or reads all fields.
void pass_request(SharedNumbers& numbers, Request& request);

}  // namespace bev
