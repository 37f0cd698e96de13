#include "data/token_file.h"

#include <algorithm>

#include "base/error.h"

namespace bev {

TokenRows read_ids_and_labels(const JsonPlace& object, std::int64_t vocab_size) {
  IdRange range = id_range(vocab_size);
  TokenRows rows;
  rows.input_ids = object.member("input_ids").rows(range);
  rows.labels = rows.input_ids;
  if (object.has("labels")) {
    JsonPlace labels = object.member("labels");
    range.besides = kIgnoredLabel;
    rows.labels = labels.rows(range);
    check_same_shape(rows.labels, rows.input_ids, labels.where());
  }
  return rows;
}

TokenRows read_token_rows(const std::string& path, std::int64_t vocab_size) {
  JsonPlace object = JsonPlace::read(path);
  TokenRows rows = read_ids_and_labels(object, vocab_size);
  if (!object.has("attention_mask")) return rows;
  JsonPlace place = object.member("attention_mask");
  std::vector<TokenRow> mask = place.rows({0, 2, 0});
  check_same_shape(mask, rows.input_ids, place.where());
  for (std::size_t row = 0; row < mask.size(); ++row) {
    auto zero = std::ranges::find(mask[row], 0);
    BEV_CHECK(
        zero == mask[row].end(), ErrorKind::kInput, place.where(), " row ", row, " column ",
        zero - mask[row].begin(),
        ": token files have no masked tokens; rows may be unequal: leave padding out, or give "
        "the file as a batch (score --batch, train --batches)");
  }
  return rows;
}

GlobalBatch batch_of(const TokenRows& rows) {
  GlobalBatch batch;
  for (std::size_t i = 0; i < rows.input_ids.size(); ++i) {
    batch.samples.push_back(labelled_sample(rows.input_ids[i], rows.labels[i]));
    batch.columns = std::max(batch.columns, std::ssize(rows.input_ids[i]));
  }
  return batch;
}

std::vector<GlobalBatch> read_token_batches(const std::string& path, std::int64_t vocab_size) {
  std::vector<GlobalBatch> batches;
  for (const JsonPlace& entry : JsonPlace::read(path).member("batches").entries("batches")) {
    std::vector<TokenRow> rows = entry.rows(id_range(vocab_size));
    batches.push_back(batch_of({rows, rows}));
  }
  return batches;
}

}  // namespace bev
