#include "app/end_process.h"

#include <cstdlib>

namespace bev {

void end_process(int exit_code) { std::_Exit(exit_code); }

}  // namespace bev
