#include "data/preprocess/preprocess.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>

#include "base/error.h"
#include "base/file.h"
#include "base/thread_pool.h"
#include "data/indexed/indexed_writer.h"
#include "data/indexed/prefix_lock.h"
#include "data/preprocess/encoding_pipeline.h"
#include "data/preprocess/preprocess_parts.h"
#include "data/preprocess/text_source.h"

namespace bev {

namespace {

constexpr std::int64_t kPartBytes = std::int64_t{4} << 30;

std::string output_name(const PreprocessConfig& config, const std::string& key) {
  return concat(config.output_prefix, "_", key, config.split_sentences ? "_sentence" : "_document");
}

// Writes encoded records to the token files of all keys.
class RecordWriter {
 public:
  // `first`: no record was read before this writer's.
  RecordWriter(const PreprocessConfig& config, std::span<const InputFile> files, TokenType type,
               bool first, PreprocessObserver& observer)
      : config_(config), files_(files), type_(type), first_(first), observer_(observer) {}

  void open(const std::string& prefix) { writers_.emplace_back(prefix, type_); }

  void add(const EncodedBatch& batch) {
    for (std::size_t i = 0; i < batch.encoded.size(); ++i) {
      add(batch.records[i], batch.encoded[i]);
    }
  }
  void commit() {
    for (IndexedDatasetWriter& writer : writers_) writer.commit();
  }

  std::int64_t skipped() const { return skipped_; }
  std::int64_t documents() const { return documents_; }

 private:
  void add(const Record& record, const EncodedRecord& encoded) {
    if (!encoded.problem.empty()) refuse(record, encoded.problem);
    for (std::size_t key = 0; key < encoded.texts.size(); ++key) {
      const EncodedText& text = encoded.texts[key];
      std::span<const std::int32_t> rest = text.ids;
      for (std::int32_t length : text.lengths) {
        writers_[key].add_sequence(rest.first(static_cast<std::size_t>(length)));
        rest = rest.subspan(static_cast<std::size_t>(length));
      }
    }
    // A document in pieces may lack its last piece, or consist of only that one.
    inside_ = inside_ || encoded.problem.empty();
    if (!inside_ || !record.ends_document) return;
    for (IndexedDatasetWriter& writer : writers_) writer.end_document();
    inside_ = false;
    ++documents_;
  }

  void refuse(const Record& record, const std::string& problem) {
    const std::string& path = files_[record.file].path;
    if (counted_file_ != record.file) {  // a part has only one range of a file
      counted_file_ = record.file;
      lines_before_ = count_lines_before(path, record.from_byte);
    }
    std::string what = concat(path, ":", lines_before_ + record.line, ": ", problem);
    // If the first is bad, all may be: leaving them out would be poor advice.
    BEV_CHECK(config_.text.on_error == BadRecords::kSkip, ErrorKind::kInput, what,
              first_ && documents_ == 0
                  ? ""
                  : "\n`preprocess --on-error skip` leaves such documents out");
    ++skipped_;
    observer_.skipped(what);
  }

  const PreprocessConfig& config_;
  std::span<const InputFile> files_;
  TokenType type_;
  bool first_;
  PreprocessObserver& observer_;
  std::deque<IndexedDatasetWriter> writers_;  // one per key
  bool inside_ = false;                       // inside a document
  std::int64_t skipped_ = 0, documents_ = 0;
  std::optional<std::size_t> counted_file_;
  std::int64_t lines_before_ = 0;
};

class Preprocessing {
 public:
  Preprocessing(const PreprocessConfig& config, std::vector<InputFile> files, std::string key,
                const Tokenizer& tokenizer, PreprocessObserver& observer)
      : config_(config),
        files_(std::move(files)),
        type_(token_type_for(tokenizer.vocab_size())),
        encoder_(config, tokenizer),
        observer_(observer),
        folder_(config.output_prefix, key) {
    bool whole = std::ranges::all_of(files_, &InputFile::regular);
    if (!whole) folder_.forget_all();  // the content of a pipe may differ each time
    for (const InputFile& file : files_) input_bytes_ += file.bytes;
    std::int64_t parts = config.partitions;
    if (parts == 0) parts = 1 + input_bytes_ / kPartBytes;
    parts_ = cut_inputs(files_, whole ? parts : 1);
    result_.parts = static_cast<std::int64_t>(parts_.size());
    if (!whole) input_bytes_ = 0;
  }

  PreprocessResult run() {
    progress_ = {input_bytes_, 0, 0, 0, result_.parts};
    for (std::int64_t part = 0; part < result_.parts; ++part) {
      progress_.part = part;
      std::optional<std::int64_t> skipped = folder_.skipped_if_done(part, config_.text.json_keys);
      if (!skipped) skipped = write_part(part);
      if (!skipped) {
        result_.stopped = true;
        return result_;
      }
      result_.skipped += *skipped;
      ++result_.parts_done;
      done_bytes_ += part_bytes(part);
      progress_.bytes = done_bytes_;
    }
    for (const std::string& key : config_.text.json_keys) show(key);
    folder_.forget_all();
    return result_;
  }

 private:
  const std::vector<FileRange>& ranges(std::int64_t part) const {
    return parts_[static_cast<std::size_t>(part)];
  }
  std::int64_t part_bytes(std::int64_t part) const {
    std::int64_t bytes = 0;
    for (const FileRange& range : ranges(part)) {
      bytes += std::min(range.end, files_[range.file].bytes) - range.begin;
    }
    return bytes;
  }

  // Returns the number of skipped records; nullopt if the observer stopped it.
  std::optional<std::int64_t> write_part(std::int64_t part) {
    observer_.advanced(progress_);
    std::int64_t documents_before = progress_.documents;
    RecordWriter writer(config_, files_, type_, part == 0, observer_);
    for (const std::string& key : config_.text.json_keys)
      writer.open(folder_.part_prefix(part, key));
    TextSource source(files_, ranges(part), config_.text);
    PipelineLimits limits;
    limits.workers = config_.workers;
    if (limits.workers == 0) limits.workers = machine_threads();
    EncodingPipeline pipeline(source, files_, encoder_, limits);
    while (std::optional<EncodedBatch> batch = pipeline.next()) {
      if (observer_.stop()) return std::nullopt;
      writer.add(*batch);
      progress_.bytes = done_bytes_ + batch->position;
      progress_.documents = documents_before + writer.documents();
      observer_.advanced(progress_);
    }
    writer.commit();
    if (input_bytes_ > 0) {  // batches end before blank lines, and know nothing of archives' ends
      progress_.bytes = done_bytes_ + part_bytes(part);
      observer_.advanced(progress_);
    }
    folder_.mark_done(part, writer.skipped());
    return writer.skipped();
  }

  // Concatenates the parts of a key and renames them to the final name, the index last.
  void show(const std::string& key) {
    std::string from = folder_.part_prefix(0, key), to = output_name(config_, key);
    if (result_.parts > 1) {
      from = folder_.whole_prefix(key);
      IndexedDatasetWriter whole(from, type_);
      for (std::int64_t part = 0; part < result_.parts; ++part) {
        whole.add_dataset(IndexedDataset(folder_.part_prefix(part, key)));
      }
      whole.commit();
    }
    // The index of an earlier pair must never be seen with the new tokens.
    std::remove(index_path(to).c_str());
    move(tokens_path(from), tokens_path(to));
    move(index_path(from), index_path(to));
    sync_folder(parent_path(to));
    IndexedDataset data(to);
    result_.outputs.push_back({to, data.num_documents(), data.num_sequences(), data.num_tokens()});
  }

  static void move(const std::string& from, const std::string& to) {
    BEV_CHECK(std::rename(from.c_str(), to.c_str()) == 0, ErrorKind::kIo, "cannot write ", to, ": ",
              std::strerror(errno));
  }

  const PreprocessConfig& config_;
  std::vector<InputFile> files_;
  TokenType type_;
  RecordEncoder encoder_;
  PreprocessObserver& observer_;
  PartsFolder folder_;
  std::vector<std::vector<FileRange>> parts_;
  std::int64_t input_bytes_ = 0, done_bytes_ = 0;
  PreprocessProgress progress_;
  PreprocessResult result_;
};

TextInputs open_inputs(const PreprocessConfig& config) {
  TextInputs inputs = list_inputs(config.input, config.text);
  for (const InputFile& file : inputs.files) {
    BEV_CHECK(file.format != TextFormat::kText || config.text.json_keys.size() == 1,
              ErrorKind::kConfig, "--json-keys: ", join(config.text.json_keys, ", "), " are ",
              config.text.json_keys.size(), " keys, and ", file.path,
              " is plain text, which has one");
  }
  return inputs;
}

}  // namespace

PreprocessResult preprocess(const PreprocessConfig& config, const Tokenizer& tokenizer,
                            PreprocessObserver& observer) {
  TextInputs inputs = open_inputs(config);
  observer.found(inputs);
  std::string key = preprocess_key(config, inputs.files);
  make_directories(parent_path(config.output_prefix));
  PrefixLock lock(config.output_prefix, LockWait::kNever);
  return Preprocessing(config, std::move(inputs.files), key, tokenizer, observer).run();
}

std::optional<std::string> preprocess_once(PreprocessConfig config, const std::string& folder,
                                           const Tokenizer& tokenizer,
                                           PreprocessObserver& observer) {
  TextInputs inputs = open_inputs(config);
  observer.found(inputs);
  std::string key = preprocess_key(config, inputs.files);
  config.output_prefix = join_path(folder, concat("text-", key));
  std::string prefix = output_name(config, config.text.json_keys.at(0));
  if (path_exists(index_path(prefix))) return prefix;
  make_directories(folder);
  PrefixLock lock(config.output_prefix, LockWait::kForever);
  if (path_exists(index_path(prefix))) return prefix;
  bool stopped =
      Preprocessing(config, std::move(inputs.files), key, tokenizer, observer).run().stopped;
  return stopped ? std::nullopt : std::optional(prefix);
}

}  // namespace bev
