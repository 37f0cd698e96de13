// Declares the families of families.def, each defined in the file of its name.
#pragma once

#include "models/families/family.h"

namespace bev {

#define BEV_FAMILY(family) ModelFamily family();
#include "models/families/families.def"

}  // namespace bev
