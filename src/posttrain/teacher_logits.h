// The likeliest tokens of a teacher on disk, for distillation without it: a folder with a header
// (logits.json) and one file of records for each rank of each run that added some. A record is that
// of one document and is found by the document's tokens, so that order, batches and layout of the
// run that reads them may be any.
//
//   record: magic, tokens, hash of the document (128 bits), hash of what follows,
//           ids [T, k] i32, log-probabilities [T, k + 1] f32 or f16, the last that of all others
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/append_file.h"
#include "base/file.h"
#include "tensor/dtype.h"

namespace bev {

struct LogitFormat {
  std::int64_t top_k = 0, vocab_size = 0;
  double temperature = 1;  // what the teacher's logits were divided by
  Dtype dtype = Dtype::kF32;
};
// Throws Error(kInput) if the folder has no logits.
LogitFormat read_logit_format(const std::string& folder);

// What is kept of the tokens of a document: ids [T, k], likeliest first, and log-probabilities [T,
// k + 1].
struct DocumentLogits {
  std::vector<std::int32_t> ids;
  std::vector<double> logps;
};

class TeacherLogits {
 public:
  // Reads what there is. Throws Error(kInput).
  explicit TeacherLogits(std::string folder);
  // Adds to it in a file of its own; the folder is made if need be. Throws Error(kInput) if it has
  // logits of another format.
  TeacherLogits(std::string folder, const LogitFormat& format, int rank);

  const LogitFormat& format() const { return format_; }
  bool has(std::span<const std::int32_t> document) const;
  // Throws Error(kInput) if the document is not there or damaged.
  DocumentLogits find(std::span<const std::int32_t> document) const;
  // Nothing is added twice.
  void add(std::span<const std::int32_t> document, const DocumentLogits& logits);

 private:
  using Key = std::pair<std::uint64_t, std::uint64_t>;
  struct Place {
    std::size_t file = 0, offset = 0;
  };

  void index_file(const std::string& name);

  std::string folder_;
  LogitFormat format_;
  std::vector<MappedFile> files_;
  std::map<Key, Place> places_;
  std::unique_ptr<AppendFile> added_;  // null: it is read only
};

}  // namespace bev
