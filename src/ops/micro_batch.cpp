#include "ops/micro_batch.h"

#include "base/error.h"

namespace bev {

const BatchField* MicroBatch::find(FieldId id) const {
  for (const BatchField& field : fields) {
    if (field.id == id) return &field;
  }
  return nullptr;
}

const BatchField& MicroBatch::field(FieldId id) const {
  const BatchField* found = find(id);
  BEV_CHECK(found != nullptr, ErrorKind::kInput, "the batch has no field '", id.name,
            "', which the model or its objective reads");
  return *found;
}

}  // namespace bev
