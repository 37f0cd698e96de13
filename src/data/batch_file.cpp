#include "data/batch_file.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json_check.h"
#include "data/encoder_batch.h"
#include "data/token_file.h"

namespace bev {

namespace {

constexpr std::array kKnownFields = {
    kInputIds,       kAttentionMask,     kTokenTypeIds,   kLabels,       kDecoderInputIds,
    kClassLabels,    kNextSentenceLabel, kStartPositions, kEndPositions, kPairs,
    kPreferenceRows, kRollouts,          kSettings};

std::vector<std::string> names_of(std::span<const FieldId> fields) {
  std::vector<std::string> names;
  for (FieldId field : fields) names.emplace_back(field.name);
  return names;
}

void check_fields(const JsonPlace& object, const BatchFormat& format) {
  for (const std::string& name : object.names()) {
    FieldId field{name};
    if (std::ranges::find(format.fields, field) != format.fields.end()) continue;
    std::string used = join(names_of(format.fields), ", ");
    bool known = std::ranges::find(kKnownFields, field) != kKnownFields.end();
    BEV_CHECK(!known, ErrorKind::kInput, object.where(), ": this model does not use ", name,
              "; its batches have ", used);
    std::string nearest = nearest_name(name, names_of(kKnownFields));
    BEV_FAIL(ErrorKind::kInput, object.where(), ": ", quote(name), " is no field of a batch; ",
             nearest.empty() ? concat("those of this model have ", used)
                             : concat("did you mean ", nearest, "?"));
  }
}

}  // namespace

std::vector<TokenRow> read_mask(const JsonPlace& place, const std::vector<TokenRow>& input_ids,
                                std::string& hole) {
  // Column of the first 0 that has a 1 on both sides; the row's length if there is none.
  auto hole_of = [](const TokenRow& mask) {
    auto first = std::ranges::find(mask, 1);
    auto zero = std::find(first, mask.end(), 0);
    bool inside = std::find(zero, mask.end(), 1) != mask.end();
    return static_cast<std::size_t>((inside ? zero : mask.end()) - mask.begin());
  };
  std::vector<TokenRow> mask = place.rows({0, 2, 0});
  check_same_shape(mask, input_ids, place.where());
  for (std::size_t row = 0; row < mask.size(); ++row) {
    bool any = std::ranges::find(mask[row], 1) != mask[row].end();
    BEV_CHECK(any, ErrorKind::kInput, place.where(), " row ", row,
              ": all tokens are masked; leave the row out");
    std::size_t column = hole_of(mask[row]);
    if (hole.empty() && column < mask[row].size()) {
      hole = concat(place.where(), " row ", row, " column ", column);
    }
  }
  return mask;
}

namespace {

GlobalBatch masked_batch(const TokenRows& rows, const JsonPlace& place) {
  GlobalBatch batch;
  std::vector<TokenRow> mask = read_mask(place, rows.input_ids, batch.hole);
  for (std::size_t row = 0; row < mask.size(); ++row) {
    batch.samples.push_back(masked_sample(rows.input_ids[row], rows.labels[row], mask[row]));
    batch.columns = std::max(batch.columns, std::ssize(mask[row]));
  }
  return batch;
}

GlobalBatch read_object(const JsonPlace& object, const BatchFormat& format) {
  BEV_CHECK(object.is_object(), ErrorKind::kInput, object.where(),
            ": expected an object of fields, got ", object.type_name());
  check_fields(object, format);
  if (format.encoder.on) return read_encoder_batch(object, format);
  TokenRows rows = read_ids_and_labels(object, format.vocab_size);
  if (!object.has(kAttentionMask.name)) return batch_of(rows);
  return masked_batch(rows, object.member(kAttentionMask.name));
}

}  // namespace

GlobalBatch read_batch(const std::string& path, const BatchFormat& format) {
  return read_object(JsonPlace::read(path), format);
}

std::vector<GlobalBatch> read_batches(const std::string& path, const BatchFormat& format) {
  std::vector<GlobalBatch> batches;
  for (const JsonPlace& entry : JsonPlace::read(path).member("batches").entries("batches")) {
    batches.push_back(read_object(entry, format));
  }
  return batches;
}

}  // namespace bev
