#include "bridge/weight_export.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/file.h"

namespace bev {

namespace {

// Bytes of a tensor: in a memory-mapped file, or in owned memory.
struct TensorData {
  std::span<const std::byte> bytes;
  std::unique_ptr<std::byte[]> memory;

  bool mapped() const { return memory == nullptr; }
};

// Uninitialised memory.
std::unique_ptr<std::byte[]> allocate(std::size_t bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(bytes);
}

// Consecutive tensors of one parameter and dtype.
struct Item {
  std::size_t param = 0;
  Dtype dtype = Dtype::kF32;
  std::vector<const ExportTensor*> tensors;
};

std::vector<Item> make_items(std::span<const ExportTensor> tensors,
                             const WeightFilesWriter& writer) {
  std::map<std::string, const ExportTensor*> by_name;
  for (const ExportTensor& tensor : tensors) by_name[tensor.spec.name] = &tensor;
  std::vector<Item> items;
  for (const TensorSpec& spec : writer.tensors()) {
    const ExportTensor* tensor = by_name.at(spec.name);
    bool same =
        !items.empty() && items.back().param == tensor->param && items.back().dtype == spec.dtype;
    if (!same) items.push_back({tensor->param, spec.dtype, {}});
    items.back().tensors.push_back(tensor);
  }
  return items;
}

std::vector<TensorData> find_stored(const ParamMapping& mapping, ParamSource& source,
                                    const Item& item) {
  std::vector<TensorData> found;
  for (const ExportTensor* tensor : item.tensors) {
    found.push_back({source.stored(mapping, tensor->part, item.dtype), nullptr});
    if (found.back().bytes.size() != tensor->spec.bytes()) return {};
  }
  return found;
}

// Reads the tensors of an item.
std::vector<TensorData> read_item(const WeightMap& map, ParamSource& source, const Item& item) {
  const ParamMapping& mapping = map.params()[item.param];
  std::vector<TensorData> parts = find_stored(mapping, source, item);
  if (!parts.empty()) return parts;
  std::unique_ptr<std::byte[]> value;  // the whole parameter, if its elements are reordered
  for (const ExportTensor* tensor : item.tensors) {
    auto memory = allocate(tensor->spec.bytes());
    if (std::optional<Range> elements = elements_of_part(mapping, tensor->part)) {
      source.read(mapping, *elements, item.dtype, memory.get());
    } else {
      std::int64_t count = mapping.shape.numel();
      if (!value) {
        value = allocate(static_cast<std::size_t>(count) * size_of(item.dtype));
        source.read(mapping, {0, count}, item.dtype, value.get());
      }
      split_param(mapping, tensor->part, value.get(), item.dtype, item.dtype, memory.get());
    }
    std::span<const std::byte> bytes(memory.get(), tensor->spec.bytes());
    parts.push_back({bytes, std::move(memory)});
  }
  return parts;
}

// Reads items on its own threads, in any order within a window ahead of the consumer, which takes
// them in order.
class ReadAhead {
 public:
  template <class Read>
  ReadAhead(std::size_t items, std::size_t threads, const Read& read)
      : items_(items), window_(threads + 1) {
    for (std::size_t i = 0; i < threads; ++i) {
      threads_.emplace_back([this, read] { work(read); });
    }
  }
  ~ReadAhead() {
    stop(nullptr);
    for (std::thread& thread : threads_) thread.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Next item; rethrows an exception of its reader.
  std::vector<TensorData> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_ || done_.contains(taken_); });
    if (failure_) std::rethrow_exception(failure_);
    std::vector<TensorData> item = std::move(done_.extract(taken_).mapped());
    ++taken_;
    changed_.notify_all();
    return item;
  }

 private:
  template <class Read>
  void work(const Read& read) {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopped_ || next_ < taken_ + window_; });
      if (stopped_ || next_ == items_) return;
      std::size_t index = next_++;
      lock.unlock();
      try {
        std::vector<TensorData> item = read(index);
        lock.lock();
        done_.emplace(index, std::move(item));
        changed_.notify_all();
      } catch (...) {
        return stop(std::current_exception());
      }
    }
  }
  void stop(std::exception_ptr failure) {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    if (!failure_) failure_ = std::move(failure);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::size_t items_, window_;
  std::size_t next_ = 0, taken_ = 0;
  std::map<std::size_t, std::vector<TensorData>> done_;
  bool stopped_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

}  // namespace

Dtype WeightFilesSource::dtype(const ParamMapping& mapping, std::size_t part) const {
  // Quantised weights (MXFP4, FP8) belong to bf16 models.
  if (stored_packed(mapping, part, files_)) return Dtype::kBf16;
  return stored_tensor(mapping, part, files_).dtype;
}

std::span<const std::byte> WeightFilesSource::stored(const ParamMapping& mapping, std::size_t part,
                                                     Dtype dtype) {
  if (stored_packed(mapping, part, files_)) return {};
  TensorBytes tensor = stored_tensor(mapping, part, files_);
  return tensor.dtype == dtype ? tensor.bytes : std::span<const std::byte>();
}

void WeightFilesSource::read(const ParamMapping& mapping, Range elements, Dtype dtype, void* out) {
  StoredParam(mapping, files_).read(elements, dtype, out);
}

std::vector<ExportTensor> export_tensors(const WeightMap& map, const ParamSource& source,
                                         std::optional<Dtype> dtype) {
  std::vector<ExportTensor> tensors = export_tensors(map, dtype.value_or(Dtype::kF32));
  for (ExportTensor& tensor : tensors) {
    if (!dtype) tensor.spec.dtype = source.dtype(map.params()[tensor.param], tensor.part);
  }
  return tensors;
}

void export_weights(const WeightMap& map, ParamSource& source,
                    std::span<const ExportTensor> tensors, WeightFilesWriter& writer,
                    std::size_t threads) {
  std::vector<Item> items = make_items(tensors, writer);
  ReadAhead ahead(items.size(), threads,
                  [&](std::size_t index) { return read_item(map, source, items[index]); });
  for (const Item& item : items) {
    std::vector<TensorData> parts = ahead.take();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      writer.write(item.tensors[i]->spec.name, parts[i].bytes);
      if (parts[i].mapped()) forget_pages(parts[i].bytes);
    }
  }
}

}  // namespace bev
