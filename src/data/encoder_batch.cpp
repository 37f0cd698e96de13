#include "data/encoder_batch.h"

#include <algorithm>

#include "base/error.h"
#include "data/encoder_sample.h"

namespace bev {

namespace {

// Optional rows of the shape of input_ids; empty if the object has none.
std::vector<TokenRow> rows_like(const JsonPlace& object, FieldId field, const IdRange& range,
                                const std::vector<TokenRow>& input_ids) {
  if (!object.has(field.name)) return {};
  JsonPlace place = object.member(field.name);
  std::vector<TokenRow> rows = place.rows(range);
  check_same_shape(rows, input_ids, place.where());
  return rows;
}

TokenRow row_of(const std::vector<TokenRow>& rows, std::size_t row) {
  return rows.empty() ? TokenRow() : rows[row];
}

// Numbers of a field with one for each sample.
std::vector<double> sample_numbers(const JsonPlace& object, FieldId field, std::size_t samples) {
  JsonPlace place = object.member(field.name);
  std::vector<double> numbers = place.numbers();
  BEV_CHECK(numbers.size() == samples, ErrorKind::kInput, place.where(), ": ", numbers.size(),
            " numbers for ", samples, " rows of input_ids");
  return numbers;
}

std::int32_t label_of(const JsonPlace& object, FieldId field, std::size_t row, double value,
                      std::int64_t labels) {
  auto label = static_cast<std::int64_t>(value);
  BEV_CHECK(static_cast<double>(label) == value && label >= 0 && label < labels, ErrorKind::kInput,
            object.where(), ": ", field.name, " of row ", row, " is ", value,
            ", but the labels of the model are 0 to ", labels - 1);
  return static_cast<std::int32_t>(label);
}

// Pairs without a label are an error: the loss of a pair head is a mean over all of them.
void add_pairs(const JsonPlace& object, GlobalBatch& batch) {
  std::vector<double> labels = sample_numbers(object, kNextSentenceLabel, batch.samples.size());
  for (std::size_t row = 0; row < labels.size(); ++row) {
    set_sample_label(batch.samples[row], kNextSentenceLabel,
                     label_of(object, kNextSentenceLabel, row, labels[row], 2));
  }
}

void add_classes(const JsonPlace& object, std::int64_t count, GlobalBatch& batch) {
  std::vector<double> labels = sample_numbers(object, kClassLabels, batch.samples.size());
  for (std::size_t row = 0; row < labels.size(); ++row) {
    TokenSample& sample = batch.samples[row];
    if (count == 1) {
      set_sample_number(sample, kClassLabels, labels[row]);
    } else {
      set_sample_label(sample, kClassLabels,
                       label_of(object, kClassLabels, row, labels[row], count));
    }
    sample.weights.front() = 1;
  }
}

// A column as the index among the tokens that are used.
void add_ends(const JsonPlace& object, FieldId field, const std::vector<TokenRow>& ids,
              const std::vector<TokenRow>& masks, GlobalBatch& batch) {
  std::vector<double> columns = sample_numbers(object, field, batch.samples.size());
  for (std::size_t row = 0; row < columns.size(); ++row) {
    std::int32_t column =
        label_of(object, field, row, columns[row], static_cast<std::int64_t>(ids[row].size()));
    TokenRow mask = row_of(masks, row);
    BEV_CHECK(mask.empty() || mask[static_cast<std::size_t>(column)] != 0, ErrorKind::kInput,
              object.where(), ": ", field.name, " of row ", row, " is ", column,
              ", a token that attention_mask masks");
    if (!mask.empty()) {
      column = static_cast<std::int32_t>(std::count(mask.begin(), mask.begin() + column, 1));
    }
    set_sample_label(batch.samples[row], field, column);
  }
}

}  // namespace

GlobalBatch read_encoder_batch(const JsonPlace& object, const BatchFormat& format) {
  const EncoderFormat& encoder = format.encoder;
  const std::vector<TokenRow> ids = object.member(kInputIds.name).rows(id_range(format.vocab_size));
  IdRange labels = id_range(encoder.labels > 0 ? encoder.labels : format.vocab_size);
  labels.besides = kIgnoredLabel;
  const auto tokens = rows_like(object, kLabels, labels, ids);
  const auto types = rows_like(object, kTokenTypeIds, {0, encoder.token_types, 0}, ids);
  GlobalBatch batch;
  std::vector<TokenRow> masks;
  if (object.has(kAttentionMask.name)) {
    masks = read_mask(object.member(kAttentionMask.name), ids, batch.hole);
  }
  for (std::size_t row = 0; row < ids.size(); ++row) {
    const TokenRow type = row_of(types, row), label = row_of(tokens, row),
                   mask = row_of(masks, row);
    batch.samples.push_back(encoder_sample({ids[row], type, label, mask}, encoder.uncounted_token));
    batch.columns = std::max(batch.columns, std::ssize(ids[row]));
  }
  if (object.has(kNextSentenceLabel.name)) add_pairs(object, batch);
  if (object.has(kClassLabels.name)) add_classes(object, encoder.labels, batch);
  for (FieldId end : {kStartPositions, kEndPositions}) {
    if (object.has(end.name)) add_ends(object, end, ids, masks, batch);
  }
  return batch;
}

}  // namespace bev
