// Batches of encoders in batch files: labels of the tokens themselves, token types, and labels of
// sequences.
#pragma once

#include <string>
#include <vector>

#include "data/batch_file.h"
#include "data/sft/json_rows.h"

namespace bev {

// The fields of an object, which are known to be fields of the model.
GlobalBatch read_encoder_batch(const JsonPlace& object, const BatchFormat& format);

// The attention mask of input_ids: at least one 1 in each row. `hole` is set to the location of the
// first 0 between ones, if there is one.
std::vector<TokenRow> read_mask(const JsonPlace& place, const std::vector<TokenRow>& input_ids,
                                std::string& hole);

}  // namespace bev
