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
#include "base/progress.h"
#include "bridge/nf4_load.h"
#include "models/families/param_mapping.h"

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
    bool same = !items.empty() && items.back().param == tensor->param &&
                items.back().dtype == spec.dtype &&
                items.back().tensors.front()->piece.has_value() == tensor->piece.has_value();
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

TensorData copy_of(std::span<const std::byte> bytes) {
  auto memory = allocate(bytes.size());
  std::copy(bytes.begin(), bytes.end(), memory.get());
  return {{memory.get(), bytes.size()}, std::move(memory)};
}

// Reads the pieces of tensors in NF4, each of which is quantised once.
std::vector<TensorData> read_pieces(const ParamMapping& mapping, ParamSource& source,
                                    const Item& item) {
  std::vector<TensorData> out;
  Nf4Tensor quantized;
  std::optional<std::size_t> part;
  for (const ExportTensor* tensor : item.tensors) {
    if (part != tensor->part) quantized = quantize_part(mapping, source, tensor->part, tensor->nf4);
    part = tensor->part;
    out.push_back(copy_of(quantized.piece(*tensor->piece)));
  }
  return out;
}

// Reads the tensors of an item.
std::vector<TensorData> read_item(const WeightMap& map, ParamSource& source, const Item& item) {
  const ParamMapping& mapping = map.params()[item.param];
  if (item.tensors.front()->piece) return read_pieces(mapping, source, item);
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
  return dtype_of_part(mapping, part, files_);
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

std::vector<ExportTensor> nf4_export_tensors(const WeightMap& map,
                                             std::vector<ExportTensor> tensors,
                                             const Nf4Format& format) {
  std::vector<ExportTensor> out;
  for (ExportTensor& tensor : tensors) {
    const ParamMapping& mapping = map.params()[tensor.param];
    if (!mapping.linear || mapping.shape.ndim() != 2) {
      out.push_back(std::move(tensor));
      continue;
    }
    BEV_CHECK(tensor.spec.dtype != Dtype::kF64, ErrorKind::kConfig,
              "--quantize nf4: ", tensor.spec.name,
              " is f64, which bitsandbytes does not quantise; add --dtype f32");
    Nf4Format own = format;
    own.dtype = tensor.spec.dtype;
    const Shape& shape = transposed(mapping) ? mapping.shape : tensor.spec.shape;
    for (Nf4Piece piece : nf4_pieces(own)) {
      out.push_back({nf4_piece_spec(piece, tensor.spec.name, shape, own), tensor.param, tensor.part,
                     piece, own});
    }
  }
  return out;
}

HfConfig nf4_config(std::span<const ExportTensor> tensors) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<std::string> kept = {"lm_head"};
  Nf4Format format;
  for (const ExportTensor& tensor : tensors) {
    if (tensor.piece) format = tensor.nf4;
    const std::string& name = tensor.spec.name;
    bool matrix = !tensor.piece && tensor.spec.shape.ndim() == 2 && name.ends_with(kWeight);
    if (matrix) kept.push_back(name.substr(0, name.size() - kWeight.size()));
  }
  HfConfig config;
  config.set("quant_method", "bitsandbytes");
  for (const char* key : {"load_in_4bit", "_load_in_4bit"}) config.set(key, true);
  for (const char* key : {"load_in_8bit", "_load_in_8bit", "llm_int8_enable_fp32_cpu_offload",
                          "llm_int8_has_fp16_weight"}) {
    config.set(key, false);
  }
  config.set("llm_int8_threshold", 6.0);
  config.set("llm_int8_skip_modules", kept);
  config.set("bnb_4bit_quant_type", "nf4");
  config.set("bnb_4bit_use_double_quant", format.double_quant);
  config.set("bnb_4bit_quant_storage", "uint8");
  config.set("bnb_4bit_compute_dtype", torch_name(format.dtype));
  return config;
}

void export_weights(const WeightMap& map, ParamSource& source,
                    std::span<const ExportTensor> tensors, WeightFilesWriter& writer,
                    std::size_t threads) {
  std::vector<Item> items = make_items(tensors, writer);
  std::uint64_t total = 0;
  for (const ExportTensor& tensor : tensors) total += tensor.spec.bytes();
  Progress progress("export", total);
  ReadAhead ahead(items.size(), threads,
                  [&](std::size_t index) { return read_item(map, source, items[index]); });
  for (const Item& item : items) {
    std::vector<TensorData> parts = ahead.take();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      writer.write(item.tensors[i]->spec.name, parts[i].bytes);
      progress.add(parts[i].bytes.size());
      if (parts[i].mapped()) forget_pages(parts[i].bytes);
    }
  }
}

}  // namespace bev
