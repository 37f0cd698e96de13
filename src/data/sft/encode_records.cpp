#include "data/sft/encode_records.h"

#include <fmt/format.h>

#include <exception>
#include <span>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread_pool.h"

namespace bev {

namespace {

// Logs the progress of a long encoding every few seconds.
class EncodingProgress {
 public:
  EncodingProgress(std::span<const InputFile> files, const char* what) : what_(what) {
    for (const InputFile& file : files) total_bytes_ += file.bytes;
  }

  void advance(std::size_t records, std::int64_t bytes) {
    constexpr double kSeconds = 10;
    double now = monotonic_seconds() - start_;
    if (now - said_at_ < kSeconds || bytes == 0 || bytes >= total_bytes_) return;
    said_at_ = now;
    double left = now * static_cast<double>(total_bytes_ - bytes) / static_cast<double>(bytes);
    log_info(fmt::format("encoding {}: {} so far, {} left", what_, records, format_duration(left)));
  }

 private:
  const char* what_;
  std::int64_t total_bytes_ = 0;
  double start_ = monotonic_seconds();
  double said_at_ = 0;
};

}  // namespace

TextOptions record_options(std::vector<std::string> keys) {
  TextOptions text;
  text.format = TextFormat::kJsonLines;
  text.only_records = true;
  text.json_keys = std::move(keys);
  return text;
}

std::string place_of(const Record& record, const InputFile& file) {
  return concat(file.path, file.format == TextFormat::kParquet ? ", row " : ", line ", record.line);
}

void encode_records(
    const std::vector<std::string>& names, const TextOptions& text, const char* what,
    FunctionRef<void(std::size_t count)> grow,
    FunctionRef<void(std::size_t index, const Record& record, const std::string& place)> encode) {
  constexpr std::size_t kBlock = 4096;
  const TextInputs inputs = list_inputs(names, text);
  const std::vector<InputFile>& files = inputs.files;
  if (!inputs.left_out.empty()) log_info(to_text(inputs));
  const std::vector<std::vector<FileRange>> parts = cut_inputs(files, 1);
  TextSource source(files, parts.front(), text);
  ThreadPool pool(machine_threads());
  EncodingProgress progress(files, what);
  std::size_t begin = 0;
  for (std::vector<Record> block(kBlock); block.size() == kBlock; begin += block.size()) {
    std::size_t count = 0;
    while (count < kBlock && source.next(block[count])) ++count;
    block.resize(count);
    grow(count);
    std::vector<std::exception_ptr> failures(count);
    pool.run(static_cast<std::int64_t>(count), [&](std::int64_t piece) {
      const auto at = static_cast<std::size_t>(piece);
      try {
        encode(begin + at, block[at], place_of(block[at], files[block[at].file]));
      } catch (...) {
        failures[at] = std::current_exception();
      }
    });
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
    progress.advance(begin + count, source.position());
  }
}

}  // namespace bev
