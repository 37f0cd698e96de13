#include "checkpoint/convert/part_files.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/checksum.h"

namespace bev {

namespace {

// A file under way, with the checksums of its blocks.
class SummedFile {
 public:
  explicit SummedFile(std::unique_ptr<OutputFile> file) : file_(std::move(file)) {
    block_.reserve(kBlockBytes);
  }

  void write(std::span<const std::byte> bytes) {
    file_->write(bytes);
    bytes_ += bytes.size();
    while (!bytes.empty()) {
      std::size_t count = std::min(bytes.size(), kBlockBytes - block_.size());
      block_.insert(block_.end(), bytes.begin(),
                    bytes.begin() + static_cast<std::ptrdiff_t>(count));
      bytes = bytes.subspan(count);
      if (block_.size() == kBlockBytes) end_block();
    }
  }
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  WrittenFile finish(std::string name) {
    if (!block_.empty()) end_block();
    file_->sync();
    return {std::move(name), bytes_, std::move(sums_)};
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  void end_block() {
    sums_.push_back(checksum(block_));
    block_.clear();
  }

  std::unique_ptr<OutputFile> file_;
  std::vector<std::byte> block_;
  std::vector<std::uint64_t> sums_;
  std::uint64_t bytes_ = 0;
};

// Keeps the last tensor open, of which the next part may be too.
class PartReader {
 public:
  explicit PartReader(StateSource& source) : source_(source) {}

  std::span<const std::byte> read(const OutputPart& part) {
    memory_.resize(part.bytes());
    std::byte* to = memory_.data();
    for (const PartSource& from : part.sources) {
      if (!tensor_ || from.tensor != name_) {
        tensor_ = nullptr;
        tensor_ = source_.open(from.tensor);
        name_ = from.tensor;
      }
      tensor_->read(from.box, part.dtype, to);
      to += static_cast<std::size_t>(from.box.numel()) * size_of(part.dtype);
    }
    BEV_CHECK(to == memory_.data() + memory_.size(), ErrorKind::kInternal,
              "convert: the sources of ", part.name, part.box, " are of another size");
    return memory_;
  }

 private:
  StateSource& source_;
  std::string name_;
  std::unique_ptr<StateTensor> tensor_;
  std::vector<std::byte> memory_;
};

class FileWriters {
 public:
  FileWriters(const std::vector<PlannedFile>& files, StateSource& source, const PartFormat& format,
              ResumableFolder& folder)
      : files_(files),
        source_(source),
        format_(format),
        folder_(folder),
        written_(files.size()),
        progress_("convert", total(files)) {}

  std::vector<WrittenFile> run(std::size_t threads) {
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < std::min(threads, files_.size()); ++i) {
      others.emplace_back([this] { work(); });
    }
    work();
    for (std::thread& other : others) other.join();
    if (failure_) std::rethrow_exception(failure_);
    return std::move(written_);
  }

 private:
  static std::uint64_t total(const std::vector<PlannedFile>& files) {
    std::uint64_t bytes = 0;
    for (const PlannedFile& file : files) bytes += file.bytes();
    return bytes;
  }

  void work() {
    PartReader reader(source_);
    try {
      for (std::size_t i = next_++; i < files_.size() && !stopped_; i = next_++) {
        if (std::optional<WrittenFile> done = folder_.find(files_[i].name)) {
          progress_.skip(files_[i].bytes());
          written_[i] = std::move(*done);
          continue;
        }
        written_[i] = write(files_[i], reader);
        if (written_[i].lengths.size() < files_[i].parts.size()) return;  // another thread failed
        folder_.add(written_[i]);
      }
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      stopped_ = true;
    }
  }

  WrittenFile write(const PlannedFile& file, PartReader& reader) {
    SummedFile out(folder_.storage().create(join_path(folder_.path(), file.name)));
    std::vector<std::uint64_t> lengths;
    out.write(format_.begin(file));
    for (const OutputPart& part : file.parts) {
      if (stopped_) break;
      std::span<const std::byte> elements = reader.read(part);
      ArchiveFrame frame = format_.frame(part, elements);
      std::uint64_t before = out.bytes();
      out.write(frame.before);
      out.write(elements);
      out.write(frame.after);
      lengths.push_back(out.bytes() - before);
      progress_.add(part.bytes());
    }
    WrittenFile done = out.finish(file.name);
    done.lengths = std::move(lengths);
    return done;
  }

  const std::vector<PlannedFile>& files_;
  StateSource& source_;
  const PartFormat& format_;
  ResumableFolder& folder_;
  std::vector<WrittenFile> written_;
  Progress progress_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::exception_ptr failure_;
};

void add_boxes(const Box& box, int dim, std::size_t item_bytes, std::size_t most_bytes,
               std::vector<Box>& out) {
  std::size_t bytes = static_cast<std::size_t>(box.numel()) * item_bytes;
  if (bytes <= most_bytes || dim == box.ndim()) {
    out.push_back(box);
    return;
  }
  Range rows = box.dim(dim);
  std::size_t row_bytes = bytes / static_cast<std::size_t>(rows.size());
  auto count = std::max<std::int64_t>(static_cast<std::int64_t>(most_bytes / row_bytes), 1);
  bool divided = row_bytes > most_bytes && dim + 1 < box.ndim();
  for (std::int64_t begin = rows.begin; begin < rows.end; begin += count) {
    Box part = box;
    part.set(dim, {begin, std::min(begin + count, rows.end)});
    if (divided) {
      add_boxes(part, dim + 1, item_bytes, most_bytes, out);
    } else {
      out.push_back(part);
    }
  }
}

}  // namespace

std::uint64_t PlannedFile::bytes() const {
  std::uint64_t sum = 0;
  for (const OutputPart& part : parts) sum += part.bytes();
  return sum;
}

std::vector<Box> boxes_within(const Shape& shape, std::size_t item_bytes, std::size_t most_bytes) {
  std::vector<Box> out;
  add_boxes(whole_box(shape), 0, item_bytes, most_bytes, out);
  return out;
}

std::vector<PlannedFile> files_of_parts(std::vector<OutputPart> parts, const PartSizes& sizes,
                                        std::string (*name)(std::size_t index)) {
  std::vector<PlannedFile> files;
  std::size_t bytes = 0;
  for (OutputPart& part : parts) {
    if (files.empty() || bytes + part.bytes() > sizes.file_bytes) {
      files.push_back({name(files.size()), {}});
      bytes = 0;
    }
    bytes += part.bytes();
    files.back().parts.push_back(std::move(part));
  }
  return files;
}

std::vector<WrittenFile> write_part_files(const std::vector<PlannedFile>& files,
                                          StateSource& source, const PartFormat& format,
                                          ResumableFolder& folder, std::size_t threads) {
  return FileWriters(files, source, format, folder).run(threads);
}

std::string plan_text(const std::vector<PlannedFile>& files) {
  std::string out;
  for (const PlannedFile& file : files) {
    for (const OutputPart& part : file.parts) {
      out += concat(file.name, " ", part.name, part.box, " ", name_of(part.dtype));
      for (const PartSource& source : part.sources) out += concat(" ", source.tensor, source.box);
      out += "\n";
    }
  }
  return out;
}

}  // namespace bev
